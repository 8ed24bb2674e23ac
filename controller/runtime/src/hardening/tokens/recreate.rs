//! Recreates tokens, for an operator command.

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;

use super::{Life, NAME_PREFIX, NAMESPACE, SECRET_TYPE, read};
use crate::capi::OwnToken;
use crate::client::CONTROLLER;
use crate::hardening::HardeningError;
use crate::hardening::access::call;
use crate::watch::patched_metadata;

/// The group of token users in kubeadm and Cluster API.
const GROUP: &str = "system:bootstrappers:kubeadm:default-node-token";

/// The `description` of a token.
const DESCRIPTION: &str = "recreated with node-attestation-controller tokens recreate";

/// Creates the Secret for a token that expires at `end`. If the Secret exists, writes the secret part and extends the
/// expiry time. Returns the expiry time, or `None` if the token does not expire.
///
/// # Errors
///
/// Returns an error if the API server is unavailable or rejects the write.
pub(crate) async fn recreate(
    client: &Client,
    token: &OwnToken,
    end: Timestamp,
) -> Result<Option<Timestamp>, HardeningError> {
    let name = format!("{NAME_PREFIX}{}", token.id);
    let end = match read(client, &name).await? {
        Some((_, Life::Ends(found) | Life::Extended(found))) => found.max(end),
        Some((_, Life::Missing { .. })) | None => end,
    };
    let end = (end != Timestamp::MAX).then_some(end);
    let text = |text: &str| ByteString(text.as_bytes().to_vec());
    let secret = json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name},
        "type": SECRET_TYPE,
        "data": {
            "token-id": text(token.id.as_str()),
            "token-secret": text(&token.secret),
            "expiration": end.map(|end| text(&end.to_string())),
            "usage-bootstrap-authentication": text("true"),
            "usage-bootstrap-signing": text("true"),
            "auth-extra-groups": text(GROUP),
            "description": text(DESCRIPTION),
        },
    });
    let api: Api<Secret> = Api::namespaced(client.clone(), NAMESPACE);
    let options = PatchParams::apply(CONTROLLER).force();
    // The response does not contain the secret part.
    let patch = Patch::Apply(&secret);
    let applied = patched_metadata(&api, &name, &options, &patch);
    call(format!("apply secrets/{name}"), applied).await?;
    Ok(end)
}
