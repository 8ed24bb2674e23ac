//! `kubelet-authenticator-insecure`: for machines without attestation.
//!
//! The holder of a bootstrap token can get the certificate of any machine that the controller's inventory assigns to
//! that token. Therefore, an operator must allow this provider in the controller, and the certificate cannot be
//! renewed. The plugin requests a certificate that is valid for one year, and uses it until it expires. Then the
//! machine enrolls again with a bootstrap token.
//!
//! For arguments, environment, streams and exit codes, see [`kubelet_authenticator::run`].

use std::process::ExitCode;

use kubelet_attestation::names::{Provider, ProviderId};
use kubelet_authenticator::attester::{Attester, Claim, ProviderIdSources, Renewal};
use kubelet_authenticator::failure::Failure;

/// musl's allocator requests every page from the kernel. A run with the stored credential exits before it frees memory.
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

/// The validity of a certificate, which cannot be renewed.
const YEAR: u32 = 365 * 24 * 3600;

#[derive(Debug)]
struct Insecure;

impl Attester for Insecure {
    fn provider(&self) -> Provider {
        Provider::INSECURE
    }

    fn renewal(&self) -> Renewal {
        Renewal::Impossible
    }

    fn expiration_seconds(&self) -> u32 {
        YEAR
    }

    fn provider_id(&self, sources: &ProviderIdSources<'_>) -> Result<ProviderId, Failure> {
        sources.configured()
    }

    fn evidence(&self, _claim: &Claim<'_>) -> Result<Option<Vec<u8>>, Failure> {
        Ok(None)
    }
}

fn main() -> ExitCode {
    kubelet_authenticator::run(Insecure)
}
