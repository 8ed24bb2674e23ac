//! Raises the lowest valid generation of a Cluster.

use node_attestation_core::time::unix_seconds;
use node_attestation_runtime::capi::ObjectKey;
use node_attestation_runtime::clock::now;
use node_attestation_runtime::identities::Identities;
use serde_json::{Value, json};

use super::{unchanged, with_warning};
use crate::error::BoxError;
use crate::query::{Confirmation, Format};

/// Raises the lowest valid generation to this time in RFC 3339, or above all generations until the present time on the
/// API server. Returns the output.
pub(super) async fn raise(
    identities: &Identities,
    cluster: &ObjectKey,
    before: Option<&str>,
    (confirmation, output): (&Confirmation, Format),
) -> Result<String, BoxError> {
    let floor = before.map(seconds).transpose()?;
    // Without a time, the floor is not known before the change, which can be long after the question.
    let limit = floor.map_or_else(|| "the time of this change".to_owned(), |at| at.to_string());
    let effect = format!(
        "Within seconds, the controller and Cluster {cluster} refuse all certificates of generations before {limit}. \
         Nodes that use one of these certificates become NotReady, and rejoin with another key, a bootstrap token and \
         their evidence. The floor cannot be lowered again."
    );
    if !confirmation.ask(&effect)? {
        return unchanged(output, &Value::Null);
    }
    let (floor, event_error) = identities.raise_floor(cluster, floor, now()).await?;
    output.print(&floor_of(cluster, floor), || {
        let text = format!("Raised the generation floor of Cluster {cluster} to {floor}.");
        with_warning(text, event_error.as_ref())
    })
}

/// The lowest valid generation of a Cluster.
pub(super) fn floor_of(cluster: &ObjectKey, floor: u64) -> Value {
    json!({
        "namespace": cluster.namespace,
        "cluster": cluster.name,
        "lowestValidGeneration": floor,
    })
}

/// Converts this time to seconds since 1970.
pub(super) fn seconds(text: &str) -> Result<u64, BoxError> {
    let time = humantime::parse_rfc3339(text);
    let time = time.map_err(|_| format!("invalid time {text} (must be YYYY-MM-DDTHH:MM:SSZ)"))?;
    Ok(unix_seconds(time))
}
