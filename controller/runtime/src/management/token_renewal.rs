//! The renewal of the token in the controller's own kubeconfig.
//!
//! The controller requests a token for its own service account from the workload cluster, and writes it to the Secret
//! that contains its kubeconfig. A token is valid for 30 days, and is renewed after a third of its lifetime. Therefore,
//! it outlives an outage of 10 days, unless the API server grants a shorter lifetime.
//!
//! # Guarantees
//!
//! - A renewal is one write, and the token in use remains valid. After a crash at any point, the next renewal repeats
//!   the request. A token that was not stored expires.
//! - The write specifies the `resourceVersion` of the Secret that was read. If an operator has replaced the Secret in
//!   the meantime, the Secret is not overwritten.
//! - The Secret is only updated with a token that expires later and belongs to the same service account.
//! - Errors do not contain a token, or any other part of a response that contains a token.

use std::time::{Duration, SystemTime};

use data_encoding::BASE64;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::Secret;
use kube::Client;
use kube::api::{Api, Patch};
use kubelet_attestation::errors::error_chain;
use node_attestation_core::time::{self, until};
use serde_json::json;
use tokio::time::Instant;
use zeroize::Zeroizing;

use super::desired_state::Sources;
use super::own_secrets;
use crate::capi::{KUBECONFIG_KEY, TenantKubeconfig, TokenClaims};
use crate::client::{CONTROLLER, CallError, call, merge};
use crate::watch::{patched_metadata, token_text};

/// The lifetime to request, which is three times the longest outage. At least two thirds are left before a renewal.
const LIFE: Duration = Duration::from_hours(30 * 24);

/// The delay between two attempts. The delay is shorter for a token with a short lifetime.
const AGAIN: Duration = Duration::from_mins(10);

/// The minimum delay between two attempts. A tenant's API server determines the lifetime of a token, and each renewal
/// is a write to the management cluster. Kubernetes grants at least 10 minutes.
const LEAST: Duration = Duration::from_secs(30);

/// The minimum number of attempts during the lifetime of a token, if each attempt fails.
const ATTEMPTS: u32 = 12;

/// The maximum length of a response that contains a token. It is several times the maximum length of a token.
const MAX_RESPONSE_LEN: usize = 64 * 1024;

/// The Secret that contains the controller's own kubeconfig.
pub(super) struct OwnSecret<'a> {
    name: &'a str,
    /// The `resourceVersion` of the Secret that was read.
    version: Option<&'a str>,
    management: &'a Client,
    /// The namespace of the Cluster.
    namespace: &'a str,
}

/// The reason why the token was not renewed. If a response can contain a token, the reason contains no part of the
/// response.
#[derive(Debug, thiserror::Error)]
enum TokenNotRenewed {
    #[error("cannot create serviceaccounts/token for {account}")]
    Request { account: String, source: CallError },
    #[error("the response to the token request is invalid")]
    Response,
    #[error(
        "the API server did not return a token with a later expiry for the same service account"
    )]
    NotLater,
    #[error("cannot patch Secret {name}")]
    Patch { name: String, source: CallError },
}

/// The attempts to renew a token.
#[derive(Default)]
pub(super) struct TokenRenewal {
    /// The time of the next attempt.
    next: Option<Instant>,
    /// The error of the last attempt.
    error: Option<String>,
}

impl<'a> OwnSecret<'a> {
    /// The Secret, if the cluster is served with the kubeconfig in it.
    pub(super) fn of(
        sources: &'a Sources,
        management: &'a Client,
        namespace: &'a str,
    ) -> Option<Self> {
        let secret = sources.kubeconfig.present()?;
        Some(Self {
            name: sources.own_kubeconfig.as_deref()?,
            version: secret.metadata.resource_version.as_deref(),
            management,
            namespace,
        })
    }
}

impl TokenRenewal {
    /// Renews the token of this kubeconfig if a third of its lifetime has passed. `workload` is a client with this
    /// kubeconfig.
    ///
    /// A kubeconfig without a service account token is not changed.
    pub(super) async fn renew(
        &mut self,
        kubeconfig: &TenantKubeconfig,
        own: &OwnSecret<'_>,
        workload: &Client,
        now: SystemTime,
    ) {
        let Some(claims) = kubeconfig.claims().filter(|claims| is_due(claims, now)) else {
            self.error = None;
            return;
        };
        if self.next.is_some_and(|next| Instant::now() < next) {
            return;
        }
        let delay = (claims.lifetime() / ATTEMPTS).clamp(LEAST, AGAIN);
        self.next = Some(Instant::now() + delay);
        let renewed = renewed(claims, kubeconfig, own, workload).await;
        self.error = renewed.err().map(|error| error_chain(&error));
        if self.error.is_none() {
            // The new token can have a shorter lifetime.
            self.next = Some(Instant::now() + LEAST);
        }
    }

    /// The warning about a token for which less than half of the lifetime is left.
    pub(super) fn warning(
        &self,
        kubeconfig: &TenantKubeconfig,
        own: &OwnSecret<'_>,
        now: SystemTime,
    ) -> Option<String> {
        let claims = kubeconfig.claims()?;
        if left(claims, now) >= claims.lifetime() / 2 {
            return None;
        }
        let error = self
            .error
            .as_deref()
            .unwrap_or("no attempt is complete yet");
        Some(format!(
            "renew the token in Secret {}, which expires at {}: {error}",
            own.name,
            time::text(claims.expires())
        ))
    }
}

fn left(claims: &TokenClaims, now: SystemTime) -> Duration {
    until(claims.expires(), now)
}

fn is_due(claims: &TokenClaims, now: SystemTime) -> bool {
    left(claims, now) < claims.lifetime() / 3 * 2
}

/// Requests a token, and writes it to the Secret.
async fn renewed(
    claims: &TokenClaims,
    kubeconfig: &TenantKubeconfig,
    own: &OwnSecret<'_>,
    workload: &Client,
) -> Result<(), TokenNotRenewed> {
    let account = (claims.namespace(), claims.account());
    let (namespace, name) = account;
    let request = TokenRequest {
        spec: TokenRequestSpec {
            audiences: Vec::new(),
            expiration_seconds: i64::try_from(LIFE.as_secs()).ok(),
            bound_object_ref: None,
        },
        ..TokenRequest::default()
    };
    let answer = call(token_text(workload, account, &request)).await;
    let answer = answer.map_err(|source| TokenNotRenewed::Request {
        account: format!("{namespace}/{name}"),
        source,
    })?;
    let text = with_token_of(answer, claims, kubeconfig)?;
    let patch = json!({
        "metadata": {"resourceVersion": own.version},
        "data": {KUBECONFIG_KEY: BASE64.encode(text.as_bytes())},
    });
    let api: Api<Secret> = own_secrets(own.management, own.namespace);
    let (parameters, patch) = (merge(CONTROLLER), Patch::Merge(&patch));
    let written = call(patched_metadata(&api, own.name, &parameters, &patch)).await;
    written.map_err(|source| TokenNotRenewed::Patch {
        name: own.name.to_owned(),
        source,
    })?;
    Ok(())
}

/// The kubeconfig with the token in this response. The response is dropped before the write, because the API server
/// determines its length.
fn with_token_of(
    answer: Zeroizing<String>,
    claims: &TokenClaims,
    kubeconfig: &TenantKubeconfig,
) -> Result<Zeroizing<String>, TokenNotRenewed> {
    let answer = Some(answer).filter(|answer| answer.len() <= MAX_RESPONSE_LEN);
    // The parser's error can contain a part of the response.
    let read: Option<TokenRequest> = answer.and_then(|answer| serde_json::from_str(&answer).ok());
    let status = read.and_then(|read| read.status);
    let status = status.ok_or(TokenNotRenewed::Response)?;
    let token = Zeroizing::new(status.token);
    let is_renewed = TokenClaims::of(&token).is_some_and(|later| claims.is_renewed_by(&later));
    let text = kubeconfig.with_token(&token).filter(|_| is_renewed);
    text.ok_or(TokenNotRenewed::NotLater)
}

#[cfg(test)]
mod tests;
