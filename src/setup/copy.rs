//! The copy of the bootstrap kubeconfig that the plugin uses.
//!
//! The first line of the copy contains a digest of the original, so an administrator can replace either file. The
//! plugin uses the copy until the bootstrap kubeconfig itself changes, regardless of the file dates.

use std::path::Path;
use std::time::Duration;

use data_encoding::HEXLOWER;
use sha2::{Digest as _, Sha256};
use zeroize::Zeroizing;

use super::kubeconfig::bootstrap_kubeconfig;
use super::{Setup, lock};
use crate::authenticator::Authenticator;
use crate::clock::{self, Deadline};
use crate::failure::Failure;
use crate::kube::ApiError;
use crate::kube::kubeconfig::{ClusterEndpoint, Kubeconfig, Login, changed_at, read_text};
use crate::store::{StoreFile, StoreLock, replace_file};

/// The first line of a copy, before the digest.
const COPIED: &str = "# Copied by `setup`: SHA-256 ";

/// The first line of a copy that was written before kubeadm set the node name.
const UNNAMED: &str = "# Copied by `setup` before the node had a name: SHA-256 ";

/// The time limit of the check whether the API server accepts the stored certificate.
pub(super) const TRYING: Duration = Duration::from_secs(5);

/// The action of `setup` for a bootstrap kubeconfig on a machine that already uses the plugin.
pub(super) enum Again {
    /// `setup` keeps the bootstrap kubeconfig, or has copied it again.
    Keeps,
    /// `setup` has copied the bootstrap kubeconfig, because the API server refuses the certificate.
    Refused,
    /// `setup` joins the machine again: the cluster does not match the kubelet's kubeconfig.
    Joins(Box<Kubeconfig>),
}

/// The comparison of a bootstrap kubeconfig with its copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Compared {
    /// The bootstrap kubeconfig changed after it was copied.
    is_newer: bool,
    /// The copy was made before the node had a name.
    is_unnamed: bool,
    /// `setup` made the copy.
    is_own: bool,
}

impl Setup {
    /// Copies the bootstrap kubeconfig again, if this is necessary and both kubeconfigs have the same cluster.
    pub(super) fn take_over_again(
        &self,
        authenticator: &Authenticator<'_>,
        given: Kubeconfig,
        endpoint: &ClusterEndpoint,
    ) -> Result<Again, Failure> {
        let copy = &authenticator.settings.bootstrap_kubeconfig;
        let Compared {
            is_newer,
            is_unnamed,
            ..
        } = compare(&given, &self.from, copy);
        // kubeadm has set the node's name since the last copy.
        let is_named_now = is_unnamed && self.kubeadm_flags.exists();
        if is_named_now {
            Self::forget_another_name(authenticator, &given.login)?;
        }
        let (_, stored) = authenticator.stored()?;
        let valid = stored.valid(clock::now());
        let has_ca = given.endpoint.has_ca_of(endpoint);
        let refused = || {
            let (origin, valid, deadline) =
                (stored.origin.as_ref()?, valid?, Deadline::after(TRYING));
            let tried = if has_ca {
                authenticator.try_certificate(origin, valid, deadline)
            } else {
                Authenticator::try_certificate_at(&given.endpoint, origin, valid, deadline)
            };
            tried?.err().filter(ApiError::is_about_the_requester)
        };
        let again = if !is_newer && !is_named_now {
            return Ok(Again::Keeps);
        } else if valid.is_none() && !has_ca {
            return Ok(Again::Joins(Box::new(given)));
        } else if valid.is_none() || is_named_now {
            Again::Keeps
        } else if given.endpoint.is_of_same_cluster(endpoint) && refused().is_some() {
            if !has_ca {
                // The cluster was created again at the same address.
                return Ok(Again::Joins(Box::new(given)));
            }
            Again::Refused
        } else {
            return Ok(Again::Keeps);
        };
        let held = lock(authenticator)?;
        self.write_copy(authenticator, &given.endpoint, &given.login, &held)?;
        let (from, copy) = (self.from.display(), copy.display());
        let log = authenticator.log;
        log.step(&format!("copied {from} to {copy} again"));
        Ok(again)
    }

    /// Returns the login in the copy, if an administrator has written the copy after the last change to the original,
    /// and if the copy is for this cluster. Some hints ask an administrator to put a bootstrap token into this file.
    /// The plugin must not send this token to another cluster.
    pub(super) fn replaced_copy(
        &self,
        authenticator: &Authenticator<'_>,
        given: &Kubeconfig,
    ) -> Result<Option<Login>, Failure> {
        let copy = &authenticator.settings.bootstrap_kubeconfig;
        let compared = compare(given, &self.from, copy);
        if compared.is_newer || compared.is_own {
            return Ok(None);
        }
        let copied = Kubeconfig::read(copy)?;
        let is_of_cluster = copied.endpoint.is_of_same_cluster(&given.endpoint);
        Ok(is_of_cluster.then_some(copied.login))
    }

    /// Copies the bootstrap kubeconfig to the plugin's directory.
    pub(super) fn write_copy(
        &self,
        authenticator: &Authenticator<'_>,
        endpoint: &ClusterEndpoint,
        login: &Login,
        lock: &StoreLock,
    ) -> Result<(), Failure> {
        let copy = copy_of(endpoint, login, !self.kubeadm_flags.exists());
        let path = &authenticator.settings.bootstrap_kubeconfig;
        replace_file(path, copy.as_bytes(), lock)?;
        // Remove the recorded failure, which belongs to the previous credential.
        drop(lock.remove(StoreFile::Failure));
        Ok(())
    }
}

/// The copy of a kubeconfig with this cluster and login. It includes the content of the files to which the kubeconfig
/// refers.
fn copy_of(endpoint: &ClusterEndpoint, login: &Login, is_unnamed: bool) -> Zeroizing<String> {
    let text = bootstrap_kubeconfig(endpoint, login);
    let mark = if is_unnamed { UNNAMED } else { COPIED };
    let digest = digest(&text);
    Zeroizing::new([mark, digest.as_str(), "\n", text.as_str()].concat())
}

/// Compares `given`, which was read from the file `from`, with `copy`.
fn compare(given: &Kubeconfig, from: &Path, copy: &Path) -> Compared {
    let text = read_text(copy).unwrap_or_default();
    let first = text.lines().next().unwrap_or_default();
    let unnamed = first.strip_prefix(UNNAMED);
    let copied = unnamed.or_else(|| first.strip_prefix(COPIED));
    let is_newer = match copied {
        Some(copied) => copied != digest(&bootstrap_kubeconfig(&given.endpoint, &given.login)),
        // An administrator or an earlier release wrote the copy.
        None => changed_at(from) >= changed_at(copy),
    };
    Compared {
        is_newer,
        is_unnamed: unnamed.is_some(),
        is_own: copied.is_some(),
    }
}

fn digest(text: &str) -> String {
    HEXLOWER.encode(&Sha256::digest(text))
}
