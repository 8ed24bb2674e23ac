//! `KubeadmConfig`, which identifies the owner of a bootstrap token, and can contain the Node name.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kubelet_attestation::names::NodeName;
use node_attestation_core::identifiers::TokenId;
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny};
use zeroize::Zeroizing;

use super::{Kept, Nothing};

/// The required fields of a `KubeadmConfig`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::capi) struct BootstrapConfig {
    pub(in crate::capi) token: Option<TokenId>,
    /// The Node name, if it is literal. Only the machine can evaluate a template.
    pub(in crate::capi) node_name: Option<NodeName>,
    /// Whether the node is a control-plane node.
    pub(in crate::capi) control_plane: bool,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::capi) struct Spec {
    init_configuration: Option<Init>,
    join_configuration: Option<Join>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Init {
    node_registration: Option<Registration>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Join {
    node_registration: Option<Registration>,
    discovery: Option<Discovery>,
    control_plane: Option<IgnoredAny>,
}

#[derive(Debug, Clone, Deserialize)]
struct Registration {
    name: Option<String>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Discovery {
    bootstrap_token: Option<BootstrapToken>,
}

#[derive(Debug, Clone, Deserialize)]
struct BootstrapToken {
    #[serde(default, deserialize_with = "public_half")]
    token: Option<TokenId>,
}

impl Kept for BootstrapConfig {
    type Spec = Spec;
    type Status = Nothing;

    fn kept(_: ObjectMeta, spec: Spec, _: Nothing) -> Option<Self> {
        let init = spec
            .init_configuration
            .and_then(|init| init.node_registration);
        let join = spec.join_configuration.unwrap_or_default();
        let token = join
            .discovery
            .and_then(|discovery| discovery.bootstrap_token);
        Some(Self {
            token: token.and_then(|token| token.token),
            // Every Machine uses the join configuration, except the first Machine of a control plane, whose
            // configuration has both parts.
            node_name: written_out(join.node_registration).or_else(|| written_out(init)),
            control_plane: join.control_plane.is_some(),
        })
    }
}

/// The name in kubeadm's canonical form (`GetHostname`: trimmed, in lower case).
fn written_out(registration: Option<Registration>) -> Option<NodeName> {
    let name = registration?.name?;
    NodeName::parse(&name.trim().to_ascii_lowercase()).ok()
}

/// Decodes the ID of a bootstrap token, and wipes the secret part.
fn public_half<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<TokenId>, D::Error> {
    let token = Option::<Zeroizing<String>>::deserialize(deserializer)?;
    let id = token.as_ref().and_then(|token| token.split_once('.'));
    Ok(id.and_then(|(id, _)| TokenId::parse(id).ok()))
}
