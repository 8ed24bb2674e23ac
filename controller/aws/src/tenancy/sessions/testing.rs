//! A test STS that counts its calls.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use aws_credential_types::provider::SharedCredentialsProvider;
use kubelet_attestation::secret::Secret;
use kubelet_authenticator_test_support::sts::{Call, Principal, Sts};
use node_attestation_core::refusal::Unavailable;
use node_attestation_runtime::clock::now;
use parking_lot::Mutex;
use serde_json::json;

use super::assume::{AssumeRole, Issued, Keys, SdkSts, Tokens};
use super::cache::Sessions;
use super::error::{FailureKind, TokenError};
use crate::credentials::{Credentials, CredentialsSource, Tenant};
use crate::proxy::Proxy;
use crate::tenancy::{
    Cluster, DigestKey, Infrastructure, ObjectRef, Objects, Plan, Role, ServiceAccount,
    TenancySettings, explain,
};
use crate::testing::credentials;

/// The plan for a cluster in `tenant-a` that has this identity.
pub(crate) fn plan(objects: &Objects, identity: &str) -> Plan {
    let (kind, name) = identity.split_once('/').unwrap();
    let cluster = Cluster {
        namespace: "tenant-a".to_owned(),
        infrastructure: Some(ObjectRef {
            kind: "AWSCluster".to_owned(),
            name: "one".to_owned(),
        }),
        ..Cluster::default()
    };
    let spec = json!({"identityRef": {"kind": kind, "name": name}});
    let spec: Infrastructure = serde_json::from_value(spec).unwrap();
    let settings = TenancySettings::default();
    let explained = explain(objects, &cluster, Some(&spec), None, settings);
    explained.plan.unwrap()
}

/// An in-memory STS that answers every call, or fails with the failure that was set for a role.
#[derive(Debug, Default)]
pub(crate) struct CountingSts {
    calls: Mutex<Vec<(String, String)>>,
    failures: Mutex<BTreeMap<String, FailureKind>>,
    life: Mutex<Option<Duration>>,
    /// Whether the next call panics, as the SDK does for an invalid header.
    panics: AtomicBool,
}

impl CountingSts {
    /// The roles that were assumed, each with the access key that assumed it.
    pub(crate) fn calls(&self) -> Vec<(String, String)> {
        self.calls.lock().clone()
    }

    pub(crate) fn count(&self) -> usize {
        self.calls.lock().len()
    }

    /// Sets the failure of a role or of `GetCallerIdentity`, in all regions or `in` one region.
    pub(crate) fn fail(&self, role: &str, failure: Option<FailureKind>) {
        let mut failures = self.failures.lock();
        match failure {
            Some(failure) => drop(failures.insert(role.to_owned(), failure)),
            None => drop(failures.remove(role)),
        }
    }

    /// Sets the lifetime of every session, regardless of the requested lifetime.
    pub(crate) fn live(&self, life: Duration) {
        *self.life.lock() = Some(life);
    }

    /// Makes the next call panic.
    pub(crate) fn panic_once(&self) {
        self.panics.store(true, Ordering::Relaxed);
    }

    fn failure(&self, what: &str, region: &str) -> Option<FailureKind> {
        let failures = self.failures.lock();
        let here = failures.get(&format!("{what} in {region}"));
        here.or_else(|| failures.get(what)).cloned()
    }

    async fn answer(&self, source: &str, role: &Role, region: &str) -> Result<Issued, FailureKind> {
        let arn = role.arn.to_string();
        let number = {
            let mut calls = self.calls.lock();
            calls.push((arn.clone(), source.to_owned()));
            calls.len()
        };
        // Other requests arrive while STS processes the call.
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(!self.panics.swap(false, Ordering::Relaxed), "asked for");
        if let Some(failure) = self.failure(&arn, region) {
            return Err(failure);
        }
        let life = self.life.lock().unwrap_or(role.duration);
        let expires = now() + life;
        let keys = Keys::new(
            format!("{arn}#{number}"),
            "secret",
            None,
            Some(expires),
            "test",
        );
        Ok(Issued { keys, expires })
    }
}

#[async_trait::async_trait]
impl AssumeRole for CountingSts {
    async fn assume_role(
        &self,
        source: &Keys,
        role: &Role,
        region: &str,
    ) -> Result<Issued, FailureKind> {
        self.answer(source.access_key_id(), role, region).await
    }

    async fn assume_role_with_web_identity(
        &self,
        token: &Secret<String>,
        role: &Role,
        region: &str,
    ) -> Result<Issued, FailureKind> {
        self.answer(token.expose(), role, region).await
    }

    async fn account(&self, keys: &Keys, region: &str) -> Result<String, FailureKind> {
        self.calls.lock().push((
            "GetCallerIdentity".to_owned(),
            keys.access_key_id().to_owned(),
        ));
        tokio::time::sleep(Duration::from_millis(100)).await;
        if let Some(failure) = self.failure("GetCallerIdentity", region) {
            return Err(failure);
        }
        Ok("999988887777".to_owned())
    }
}

/// A user in the controller's account. The strict STS recognizes its access key.
pub(crate) const CONTROLLER_USER: &str = "arn:aws:iam::999988887777:user/controller";

const ACCESS_KEY: &str = "AKIAOWN";

/// A service for the SDK that checks signatures, trust policies and external IDs.
pub(crate) struct StrictSts {
    pub(crate) service: Sts,
    pub(crate) region: &'static str,
}

impl StrictSts {
    pub(crate) fn start(region: &'static str) -> Self {
        let service = Sts::start();
        let controller = Principal::user("999988887777", "controller");
        service.learn(controller, (ACCESS_KEY, "secret"));
        Self { service, region }
    }

    /// The controller's own credentials.
    pub(crate) fn own() -> Arc<dyn CredentialsSource> {
        Arc::new(Own)
    }

    pub(crate) fn sdk(&self) -> SdkSts {
        let authorities = self.service.ca_pem().as_bytes().to_vec();
        let client = Proxy::default().http_client_trusting(authorities).unwrap();
        let endpoints = [(self.region.to_owned(), self.service.url())];
        SdkSts::new(Self::own(), endpoints.into(), Some(client))
    }

    pub(crate) fn sessions(&self) -> Sessions {
        Sessions::new(
            SharedCredentialsProvider::new(Keys::new(ACCESS_KEY, "secret", None, None, "test")),
            Arc::new(self.sdk()),
            Arc::new(NamedTokens),
            DigestKey::new(&[7; 32]),
        )
    }

    /// The parameters of all calls so far, without the parameters that every call contains.
    pub(crate) fn parameters(&self) -> Vec<BTreeMap<String, String>> {
        let parameters = |call: Call| {
            let pairs = url::form_urlencoded::parse(call.body.as_bytes()).into_owned();
            let pairs: Vec<(String, String)> = pairs.collect();
            let mut parameters: BTreeMap<_, _> = pairs.iter().cloned().collect();
            assert_eq!(parameters.len(), pairs.len(), "twice: {pairs:?}");
            parameters.remove("Version");
            parameters
        };
        self.service.calls().into_iter().map(parameters).collect()
    }
}

#[derive(Debug)]
struct Own;

#[async_trait::async_trait]
impl CredentialsSource for Own {
    async fn credentials(&self, _: &Tenant, _: &str) -> Result<Credentials, Unavailable> {
        Ok(credentials(0, ACCESS_KEY))
    }
}

#[derive(Debug)]
pub(crate) struct NamedTokens;

#[async_trait::async_trait]
impl Tokens for NamedTokens {
    async fn token(&self, account: &ServiceAccount) -> Result<Secret<String>, TokenError> {
        match &*account.name {
            "gone" => Err(TokenError::Call("serviceaccount gone not found".into())),
            name => Ok(Secret::new(format!(
                "token of {}/{name}",
                account.namespace
            ))),
        }
    }
}

/// Sessions with this STS.
pub(crate) fn sessions(sts: &Arc<CountingSts>) -> Sessions {
    let own = Keys::new("OWN", "secret", None, None, "test");
    let own = SharedCredentialsProvider::new(own);
    Sessions::new(
        own,
        sts.clone(),
        Arc::new(NamedTokens),
        DigestKey::new(&[7; 32]),
    )
}
