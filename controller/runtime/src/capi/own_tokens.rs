//! The Machines of a Cluster for operator commands: their Nodes, and their bootstrap tokens with their secrets, from
//! their `KubeadmConfig`s.
//!
//! Only operator commands use this module. The controller never reads the secret part.

use std::collections::BTreeSet;

use kube::api::{Api, ListParams};
use kube::{Client, Error, Resource as _};
use kubelet_attestation::names::{NodeName, ProviderId};
use node_attestation_core::crd::CLUSTER_NAME_LABEL;
use node_attestation_core::identifiers::TokenId;
use serde::Deserialize;
use zeroize::Zeroizing;

use super::ObjectKey;
use super::api_discovery::{NotServed, referred, required};
use super::objects::{Machine, Raw, Reference, Watched as _};
use crate::client::{CallError, call, cause};
use crate::watch::{Unreadable, all_of, text_of_one};

/// A bootstrap token.
#[derive(derive_more::Debug, Clone)]
pub(crate) struct OwnToken {
    pub(crate) id: TokenId,
    #[debug(skip)]
    pub(crate) secret: Zeroizing<String>,
}

/// The token of one Machine could not be read. This error does not affect other Machines.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TokenUnread {
    /// The Machine is invalid.
    #[error("the Machine cannot be decoded")]
    Machine(#[from] Unreadable),
    /// The `KubeadmConfig` does not exist, its kind is not served, or the current user is not allowed to read it.
    #[error("cannot read {kind} {name}")]
    Config {
        /// The kind in the reference.
        kind: String,
        /// The name in the reference.
        name: String,
        /// The reason.
        source: CallError,
    },
}

/// A Machine with its token. The token is missing if the `KubeadmConfig` has none, because another bootstrap provider
/// created the data, or because the Machine was the first Machine in its control plane.
pub(crate) type TokenOfMachine = (String, Result<Option<OwnToken>, TokenUnread>);

/// The Machines of a Cluster with their own tokens, except Machines that are being deleted. `only` restricts the list
/// to these names.
///
/// # Errors
///
/// Returns an error if the management cluster does not respond, or if its Machines cannot be listed.
pub(crate) async fn own_tokens(
    management: &Client,
    cluster: &ObjectKey,
    only: Option<&BTreeSet<String>>,
) -> Result<Vec<TokenOfMachine>, CallError> {
    let mut tokens = Vec::new();
    for (name, config) in machines(management, cluster).await? {
        if only.is_some_and(|only| !only.contains(&name)) {
            continue;
        }
        let token = match config {
            Ok(Some(config)) => match own_token(management, &cluster.namespace, &config).await {
                Ok(token) => Ok(token),
                Err(error) if is_outage(&error) => return Err(error),
                Err(source) => Err(TokenUnread::Config {
                    kind: config.kind,
                    name: config.name,
                    source,
                }),
            },
            Ok(None) => Ok(None),
            Err(unreadable) => Err(unreadable.into()),
        };
        tokens.push((name, token));
    }
    Ok(tokens)
}

/// Whether the API server did not respond. All other errors concern a single reference, which any user who can write
/// Machines can make invalid.
fn is_outage(error: &CallError) -> bool {
    match error {
        CallError::Deadline(_) => true,
        CallError::Refused(_) => false,
        CallError::Failed(failed) => {
            let is_transport = matches!(**failed, Error::Service(_) | Error::HyperError(_));
            is_transport && cause::<NotServed>(error).is_none()
        }
    }
}

/// A Machine with the reference to its `KubeadmConfig`.
type ConfigOfMachine = (String, Result<Option<Reference>, Unreadable>);

/// The Machines of a Cluster with their `KubeadmConfig`s, except Machines that are being deleted.
async fn machines(
    management: &Client,
    cluster: &ObjectKey,
) -> Result<Vec<ConfigOfMachine>, CallError> {
    let all = machines_with(management, cluster, "").await?.into_iter();
    let live = all.filter(|(_, object)| object.meta().deletion_timestamp.is_none());
    let configs = live.map(|(name, object)| {
        let config = object.kept().map(|machine| {
            let config = machine.and_then(|machine| machine.config);
            config.map(|one| one.complete())
        });
        (name, config)
    });
    Ok(configs.collect())
}

/// A Machine and its Node. The Node and the provider ID are missing if the Machine is invalid or does not have them.
/// They are also missing if the Machine is being deleted, because its successor can have a Node with the same name.
#[derive(Debug, Clone)]
pub(crate) struct MemberMachine {
    pub(crate) name: String,
    pub(crate) node: Option<NodeName>,
    pub(crate) provider_id: Option<ProviderId>,
}

/// A Cluster's Machines that match the label selector `labels`, which can be empty.
///
/// # Errors
///
/// Returns an error if the Machines cannot be listed.
pub(crate) async fn member_machines(
    management: &Client,
    cluster: &ObjectKey,
    labels: &str,
) -> Result<Vec<MemberMachine>, CallError> {
    let all = machines_with(management, cluster, labels).await?;
    let members = all.into_iter().map(|(name, object)| {
        let machine = object.kept().ok().flatten();
        let machine = machine.filter(|machine| !machine.deleting);
        let (node, provider_id) = machine
            .map(|machine| (machine.node, machine.provider_id))
            .unwrap_or_default();
        MemberMachine {
            name,
            node,
            provider_id,
        }
    });
    Ok(members.collect())
}

/// A Cluster's Machines that match the label selector `labels`, with their names.
async fn machines_with(
    management: &Client,
    cluster: &ObjectKey,
    labels: &str,
) -> Result<Vec<(String, Raw<Machine>)>, CallError> {
    let resource = call(required(management, Machine::KIND)).await?;
    let namespace = &cluster.namespace;
    let api: Api<Raw<Machine>> = Api::namespaced_with(management.clone(), namespace, &resource);
    let mut wanted = format!("{CLUSTER_NAME_LABEL}={}", cluster.name);
    if !labels.is_empty() {
        wanted = format!("{wanted},{labels}");
    }
    let all = all_of(&api, ListParams::default().labels(&wanted)).await?;
    let named = all.into_iter();
    let named = named.map(|object| (object.meta().name.clone().unwrap_or_default(), object));
    Ok(named.collect())
}

/// The token in an existing `KubeadmConfig`, if it has one. The object is read as text, and the text is wiped after
/// use, because the client logs responses that it cannot decode.
async fn own_token(
    management: &Client,
    namespace: &str,
    config: &Reference,
) -> Result<Option<OwnToken>, CallError> {
    let resource = call(async {
        let resource = referred((management, namespace), config).await?;
        resource.ok_or_else(|| Error::Service(NotServed.into()))
    });
    let resource = resource.await?;
    let path = Raw::<Machine>::url_path(&resource, Some(namespace));
    let text = call(text_of_one(management, path, &config.name)).await?;
    Ok(token(&text))
}

fn token(text: &str) -> Option<OwnToken> {
    let config: Config = serde_json::from_str(text).ok()?;
    let token = config
        .spec
        .join_configuration?
        .discovery?
        .bootstrap_token?
        .token;
    let (id, secret) = token.split_once('.')?;
    Some(OwnToken {
        id: TokenId::parse(id).ok()?,
        secret: Zeroizing::new(secret.to_owned()),
    })
}

#[derive(Deserialize)]
struct Config {
    spec: Spec,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    join_configuration: Option<Join>,
}

#[derive(Deserialize)]
struct Join {
    discovery: Option<Discovery>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Discovery {
    bootstrap_token: Option<BootstrapToken>,
}

#[derive(Deserialize)]
struct BootstrapToken {
    token: Zeroizing<String>,
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::hostile_values;

    #[test]
    fn a_hostile_value_in_an_unread_field_does_not_hide_the_token() {
        let good = json!({"metadata": {}, "spec": {"joinConfiguration": {
            "discovery": {"bootstrapToken": {"token": "abcdef.0123456789abcdef"}},
        }}});
        for value in hostile_values() {
            for place in [
                "",
                "/metadata",
                "/spec",
                "/spec/joinConfiguration/discovery",
            ] {
                let mut hostile = good.clone();
                if let Some(Value::Object(fields)) = hostile.pointer_mut(place) {
                    fields.insert("unread".to_owned(), value.clone());
                }
                let token = token(&hostile.to_string()).unwrap();
                assert_eq!(token.id.to_string(), "abcdef", "{place}");
            }
        }
    }
}
