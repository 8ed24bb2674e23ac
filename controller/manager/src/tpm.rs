//! The attestation provider `tpm`: its options, and the keys that its verifiers share.

use std::fs::File;
use std::io::ErrorKind::NotFound;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use data_encoding::HEXLOWER;
use node_attestation_aws::policy::AwsPolicy;
use node_attestation_core::crd::{EndorsementKeyPlatform, TpmSettings};
use node_attestation_core::refusal::Unavailable;
use node_attestation_core::verifier::platform::{NoPlatform, Platform};
use node_attestation_tpm::challenge::{ChallengeKey, ChallengeKeySource, ChallengeKeys};
use zeroize::Zeroizing;

use crate::aws::{Aws, AwsUnavailable};
use crate::error::{BoxError, explain};

mod config_maps;
mod observations;
mod policies;

pub(crate) use config_maps::ConfigMapReader;
pub(crate) use observations::ObservationsOfClusters;
pub(crate) use policies::PoliciesOfClusters;

/// The name of the file with the key for new challenges.
const CURRENT: &str = "current";

/// The name of the file with the previous key. Responses to challenges with this key are still accepted.
const FORMER: &str = "former";

/// The maximum length of a key file: the key in hexadecimal, with a line break.
const MAX_KEY_LEN: usize = 2 * 32 + 1;

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "TPM")]
pub(crate) struct TpmArguments {
    /// Directory with the keys for TPM challenges: the file `current` and, during a key rotation, `former`, each
    /// with 32 random bytes in hexadecimal. Mount one Secret for all replicas
    #[arg(long, value_name = "DIRECTORY")]
    tpm_challenge_keys: Option<PathBuf>,
}

/// A key cannot be used.
#[derive(Debug, thiserror::Error)]
enum InvalidKey {
    #[error("cannot read --tpm-challenge-keys {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("--tpm-challenge-keys {}: a key must have 64 lower-case hexadecimal digits, such as the output of `openssl \
        rand -hex 32`", path.display())]
    Form { path: PathBuf },
}

impl TpmArguments {
    /// Opens the keys, which must already exist. Returns `None` if the option is not set.
    pub(crate) fn open(self) -> Result<Option<Arc<dyn ChallengeKeySource>>, BoxError> {
        let Some(directory) = self.tpm_challenge_keys else {
            return Ok(None);
        };
        let keys = KeyFiles(directory);
        keys.read()?;
        Ok(Some(Arc::new(keys)))
    }
}

/// Returns the platform that provides the TPMs of a cluster, according to its settings. EC2 is queried only for
/// instances that `policy` accepts.
pub(crate) fn platform(
    settings: &TpmSettings,
    aws: Result<&Aws, &AwsUnavailable>,
    policy: impl FnOnce(&Aws) -> AwsPolicy,
) -> Result<Arc<dyn Platform>, BoxError> {
    match (settings.endorsement_keys.platform, aws) {
        (EndorsementKeyPlatform::None, _) => Ok(Arc::new(NoPlatform)),
        (EndorsementKeyPlatform::Aws, Ok(aws)) => {
            let instances = aws.instances.clone();
            Ok(Arc::new(aws.tpms.of_cluster(instances, policy(aws))))
        }
        (EndorsementKeyPlatform::Aws, Err(why)) => {
            let what = "spec.tpm.endorsementKeys.platform is aws, but EC2 cannot be called";
            Err(explain(what)(why.clone()))
        }
    }
}

/// Keys in files. The keys are read for each request, so a new key does not require a restart.
#[derive(Debug)]
struct KeyFiles(PathBuf);

impl KeyFiles {
    fn read(&self) -> Result<ChallengeKeys, InvalidKey> {
        let current = self.0.join(CURRENT);
        let former = self.0.join(FORMER);
        Ok(ChallengeKeys {
            current: key(&current)?,
            former: match key(&former) {
                Err(InvalidKey::Read { source, .. }) if source.kind() == NotFound => None,
                former => Some(former?),
            },
        })
    }
}

impl ChallengeKeySource for KeyFiles {
    fn keys(&self) -> Result<Arc<ChallengeKeys>, Unavailable> {
        self.read().map(Arc::new).map_err(Unavailable::new)
    }
}

fn key(path: &Path) -> Result<ChallengeKey, InvalidKey> {
    let read = |source| InvalidKey::Read {
        path: path.to_owned(),
        source,
    };
    let mut text = Zeroizing::new(Vec::with_capacity(MAX_KEY_LEN + 1));
    let limit = u64::try_from(MAX_KEY_LEN + 1).unwrap_or(u64::MAX);
    let file = File::open(path).map_err(read)?;
    file.take(limit).read_to_end(&mut text).map_err(read)?;
    let digits = text.strip_suffix(b"\n").unwrap_or(&text);
    let mut bytes = [0; 32];
    let is_key = digits.len() == 2 * bytes.len() && HEXLOWER.decode_mut(digits, &mut bytes).is_ok();
    is_key
        .then(|| ChallengeKey::new(bytes))
        .ok_or_else(|| InvalidKey::Form {
            path: path.to_owned(),
        })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn challenge_keys_are_reread_and_the_previous_key_is_optional() {
        let directory = tempfile::tempdir().unwrap();
        let files = KeyFiles(directory.path().to_owned());
        assert!(matches!(files.read(), Err(InvalidKey::Read { .. })));

        fs::write(directory.path().join(CURRENT), "0f".repeat(32) + "\n").unwrap();
        assert!(files.keys().unwrap().former.is_none());

        fs::write(directory.path().join(FORMER), "a1".repeat(32)).unwrap();
        assert!(files.keys().unwrap().former.is_some());
    }

    #[test]
    fn an_invalid_key_file_is_reported_without_its_content() {
        let directory = tempfile::tempdir().unwrap();
        let files = KeyFiles(directory.path().to_owned());
        let digits = "0f".repeat(32);
        for text in [
            digits.to_uppercase(),
            "0f".repeat(31),
            format!("{digits}0"),
            format!("{digits}\n\n"),
            String::new(),
        ] {
            fs::write(directory.path().join(CURRENT), &text).unwrap();

            let error = files.read().unwrap_err();
            assert!(matches!(error, InvalidKey::Form { .. }), "{text}");
            assert!(text.is_empty() || !error.to_string().contains(&text));
        }
    }
}
