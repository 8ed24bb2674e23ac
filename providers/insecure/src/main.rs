//! `kubelet-authenticator-insecure`: for machines that can prove nothing.
//!
//! Whoever holds a bootstrap token can have the certificate of any machine that the controller's
//! inventory gives that token, which is why the controller has to be told to allow this, and why
//! such a certificate cannot be renewed: it is asked for a year, used to its end, and then the
//! machine enrols again with a bootstrap token.
//!
//! Arguments, environment, streams and exit statuses are those of
//! [`kubelet_authenticator::cli::run`].

use std::process::ExitCode;

use kubelet_attestation::names::{Provider, ProviderId};
use kubelet_authenticator::attester::{Attester, AttesterError, Claim, ProviderIdSources, Renewal};
use kubelet_authenticator::cli;

/// musl's allocator asks the kernel for every page; a cached run ends before it would give any
/// back.
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

/// A certificate that cannot be renewed has to last.
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

    fn provider_id(&self, sources: &ProviderIdSources<'_>) -> Result<ProviderId, AttesterError> {
        sources.configured()
    }

    fn evidence(&self, _claim: &Claim<'_>) -> Result<Option<Vec<u8>>, AttesterError> {
        Ok(None)
    }
}

fn main() -> ExitCode {
    cli::run(Insecure)
}
