//! Access to the management cluster.

use std::env;
use std::path::PathBuf;

use node_attestation_runtime::client::ClusterAccess;

use crate::error::{BoxError, Hinted, explain};

/// The namespace of the controller in the manifests.
pub(crate) const NAMESPACE: &str = "node-attestation-system";

/// Returns access to the cluster in this kubeconfig and context. Without a kubeconfig, uses the files that
/// kubectl reads or, if there are none, the cluster in which this process runs.
///
/// # Errors
///
/// Returns an error if none of these exists, or if the first one that exists cannot be used.
pub(crate) async fn for_person(
    kubeconfig: Option<PathBuf>,
    context: Option<&str>,
) -> Result<ClusterAccess, BoxError> {
    let files = match kubeconfig {
        Some(file) => vec![file],
        None => variable().or_else(home).unwrap_or_default(),
    };
    if files.is_empty() {
        return in_cluster(
            context,
            "no kubeconfig found",
            "set --kubeconfig, KUBECONFIG or ~/.kube/config to a kubeconfig of the management cluster, or run in a Pod",
        );
    }
    Ok(ClusterAccess::from_kubeconfigs(&files, context).await?)
}

/// Returns access to the cluster in this kubeconfig and context, or to the cluster in which this process runs. Ignores
/// the `KUBECONFIG` variable, because a controller signs and approves requests.
///
/// # Errors
///
/// Returns an error if the kubeconfig cannot be used, or if no kubeconfig exists and this process does not run in a
/// cluster.
pub(crate) async fn for_controller(
    kubeconfig: Option<PathBuf>,
    context: Option<&str>,
) -> Result<ClusterAccess, BoxError> {
    match kubeconfig {
        Some(file) => Ok(ClusterAccess::from_kubeconfigs(&[file], context).await?),
        None => in_cluster(
            context,
            "neither --kubeconfig nor --workload-kubeconfig is set",
            "set --kubeconfig for a management cluster or --workload-kubeconfig for one cluster, or run in a Pod",
        ),
    }
}

fn in_cluster(
    context: Option<&str>,
    missing: &'static str,
    hint: &'static str,
) -> Result<ClusterAccess, BoxError> {
    if let Some(context) = context {
        return Err(format!("--context {context} requires a kubeconfig").into());
    }
    ClusterAccess::in_cluster().map_err(|error| Hinted::new(explain(missing)(error), hint).into())
}

/// The existing files in `KUBECONFIG`. As in kubectl, an empty variable counts as unset.
fn variable() -> Option<Vec<PathBuf>> {
    let list = env::var_os("KUBECONFIG").filter(|list| !list.is_empty())?;
    Some(
        env::split_paths(&list)
            .filter(|file| file.exists())
            .collect(),
    )
}

/// The kubeconfig in the home directory, if it exists.
fn home() -> Option<Vec<PathBuf>> {
    let file = PathBuf::from(env::var_os("HOME")?).join(".kube/config");
    file.is_file().then(|| vec![file])
}
