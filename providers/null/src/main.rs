//! `kubelet-authenticator-null`: a rubber stamp, with which tests take the path of providers that
//! attest.
//!
//! Its evidence says which cluster it is for and proves nothing. It is in no package, and no
//! released controller knows its signer.
//!
//! Arguments, environment, streams and exit statuses are those of
//! [`kubelet_authenticator::cli::run`].

use std::process::ExitCode;

use kubelet_attestation::evidence::Header;
use kubelet_attestation::names::{Provider, ProviderId};
use kubelet_authenticator::attester::{Attester, AttesterError, Claim, ProviderIdSources};
use kubelet_authenticator::cli;

#[derive(Debug)]
struct Null;

impl Attester for Null {
    fn provider(&self) -> Provider {
        Provider::NULL
    }

    fn provider_id(&self, sources: &ProviderIdSources<'_>) -> Result<ProviderId, AttesterError> {
        sources.configured()
    }

    fn evidence(&self, claim: &Claim<'_>) -> Result<Option<Vec<u8>>, AttesterError> {
        let header = Header {
            version: claim.version.clone(),
            audience: claim.audience.clone(),
        };
        Ok(Some(header.to_json()))
    }
}

fn main() -> ExitCode {
    cli::run(Null)
}
