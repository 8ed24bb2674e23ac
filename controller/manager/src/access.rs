//! Access to the management cluster.

use std::env;
use std::path::{Path, PathBuf};

use node_attestation_runtime::client::ClusterAccess;

use crate::error::{BoxError, explain};

/// The cluster of this kubeconfig, or the one that this runs in; `missing` is the error outside a cluster.
pub(crate) async fn access(
    kubeconfig: Option<&Path>,
    missing: &'static str,
) -> Result<ClusterAccess, BoxError> {
    match kubeconfig {
        Some(file) => Ok(ClusterAccess::from_kubeconfig(file).await?),
        None => ClusterAccess::in_cluster().map_err(explain(missing)),
    }
}

/// A person's kubeconfig, as kubectl finds it: the first existing file of `KUBECONFIG`, or `~/.kube/config`.
pub(crate) fn persons_kubeconfig() -> Option<PathBuf> {
    let home = || Some(PathBuf::from(env::var_os("HOME")?).join(".kube/config"));
    let files: Vec<_> = match env::var_os("KUBECONFIG") {
        Some(list) => env::split_paths(&list).collect(),
        None => home().into_iter().collect(),
    };
    files.into_iter().find(|file| file.is_file())
}
