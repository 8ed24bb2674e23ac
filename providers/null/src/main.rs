//! `kubelet-authenticator-null`: a provider for tests, with the same code path as providers with evidence.
//!
//! Its evidence contains the cluster, but does not prove an identity. No package contains this program, and no released
//! controller accepts its signer.
//!
//! For arguments, environment, streams and exit codes, see [`kubelet_authenticator::run`].

use std::process::ExitCode;

use kubelet_attestation::evidence::Header;
use kubelet_attestation::names::{Provider, ProviderId};
use kubelet_authenticator::attester::{Attester, Claim, ProviderIdSources};
use kubelet_authenticator::failure::Failure;

#[derive(Debug)]
struct Null;

impl Attester for Null {
    fn provider(&self) -> Provider {
        Provider::NULL
    }

    fn provider_id(&self, sources: &ProviderIdSources<'_>) -> Result<ProviderId, Failure> {
        sources.configured()
    }

    fn evidence(&self, claim: &Claim<'_>) -> Result<Option<Vec<u8>>, Failure> {
        let header = Header {
            version: claim.version.clone(),
            audience: claim.audience.clone(),
        };
        Ok(Some(header.to_json()))
    }
}

fn main() -> ExitCode {
    kubelet_authenticator::run(Null)
}
