//! Access to the management cluster.

use std::env;
use std::path::{Path, PathBuf};

use node_attestation_runtime::client::{ClusterAccess, ClusterAccessError, InClusterAccessError};

/// The management cluster cannot be asked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AccessError {
    /// Its kubeconfig.
    #[error(transparent)]
    Kubeconfig(#[from] ClusterAccessError),
    /// There is no kubeconfig, and this does not run in a cluster.
    #[error("{missing}")]
    NoCluster {
        missing: &'static str,
        source: InClusterAccessError,
    },
}

/// The cluster of this kubeconfig, or the one that this runs in; `missing` says what to do where it
/// runs in none.
pub(crate) async fn access(
    kubeconfig: Option<&Path>,
    missing: &'static str,
) -> Result<ClusterAccess, AccessError> {
    match kubeconfig {
        Some(file) => Ok(ClusterAccess::from_kubeconfig(file).await?),
        None => {
            ClusterAccess::in_cluster().map_err(|source| AccessError::NoCluster { missing, source })
        }
    }
}

/// A person's kubeconfig, where kubectl has it: the first file of `KUBECONFIG` that is there, or
/// `~/.kube/config`.
pub(crate) fn persons_kubeconfig() -> Option<PathBuf> {
    let home = || Some(PathBuf::from(env::var_os("HOME")?).join(".kube/config"));
    let files: Vec<_> = match env::var_os("KUBECONFIG") {
        Some(list) => env::split_paths(&list).collect(),
        None => home().into_iter().collect(),
    };
    files.into_iter().find(|file| file.is_file())
}
