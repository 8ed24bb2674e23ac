//! The bootstrap tokens of Machines with their secrets, from their `KubeadmConfig`s.
//!
//! Only a command for operators uses this. The controller never reads the secret part.

use std::collections::BTreeSet;

use kube::api::{Api, ListParams};
use kube::{Client, Resource as _};
use node_attestation_core::crd::CLUSTER_NAME_LABEL;
use node_attestation_core::identifiers::TokenId;
use serde::Deserialize;
use zeroize::Zeroizing;

use super::ObjectKey;
use super::api_discovery::{NotServed, referred, required};
use super::objects::{Machine, Raw, Reference, Watched as _};
use crate::client::{CallError, call};
use crate::watch::{all_of, text_of_one};

/// A bootstrap token.
#[derive(derive_more::Debug, Clone)]
pub(crate) struct OwnToken {
    pub(crate) id: TokenId,
    #[debug(skip)]
    pub(crate) secret: Zeroizing<String>,
}

/// The Machines of a Cluster that are not being deleted, each with its own token. `only` restricts the list to these
/// names.
///
/// A Machine whose `KubeadmConfig` has no token has `None`: another bootstrap provider created its data, or it was the
/// first Machine of its control plane.
pub(crate) async fn own_tokens(
    management: &Client,
    cluster: &ObjectKey,
    only: Option<&BTreeSet<String>>,
) -> Result<Vec<(String, Option<OwnToken>)>, CallError> {
    let mut tokens = Vec::new();
    for (name, config) in machines(management, cluster).await? {
        if only.is_some_and(|only| !only.contains(&name)) {
            continue;
        }
        let token = match config {
            Some(config) => own_token(management, &cluster.namespace, &config).await?,
            None => None,
        };
        tokens.push((name, token));
    }
    Ok(tokens)
}

/// The Machines of a Cluster that are not being deleted, each with its `KubeadmConfig`.
async fn machines(
    management: &Client,
    cluster: &ObjectKey,
) -> Result<Vec<(String, Option<Reference>)>, CallError> {
    let resource = call(required(management, Machine::KIND)).await?;
    let namespace = &cluster.namespace;
    let api: Api<Raw<Machine>> = Api::namespaced_with(management.clone(), namespace, &resource);
    let label = format!("{CLUSTER_NAME_LABEL}={}", cluster.name);
    let wanted = ListParams::default().labels(&label);
    let all = all_of(&api, wanted).await?;
    let mut found = Vec::new();
    for object in all {
        let name = object.meta().name.clone().unwrap_or_default();
        // A Machine that cannot be decoded has no token that can be read.
        let machine = object.kept().ok().flatten();
        match machine {
            Some(machine) if machine.deleting => {}
            Some(machine) => found.push((name, machine.config.map(|one| one.complete()))),
            None => found.push((name, None)),
        }
    }
    Ok(found)
}

/// The token of a `KubeadmConfig`, if it has one. The object is read as text, which is wiped after use, because the
/// client logs responses that it cannot decode.
async fn own_token(
    management: &Client,
    namespace: &str,
    config: &Reference,
) -> Result<Option<OwnToken>, CallError> {
    let resource = call(async {
        let resource = referred((management, namespace), config).await?;
        resource.ok_or_else(|| kube::Error::Service(NotServed.into()))
    });
    let resource = resource.await?;
    let path = Raw::<Machine>::url_path(&resource, Some(namespace));
    match call(text_of_one(management, path, &config.name)).await {
        Ok(text) => Ok(token(&text)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
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
