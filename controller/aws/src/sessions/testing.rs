//! STS for the tests, which counts its calls.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use aws_credential_types::provider::SharedCredentialsProvider;
use kubelet_attestation::secret::Secret;
use node_attestation_runtime::clock::now;
use parking_lot::Mutex;

use super::assume::{AssumeRole, Issued, Keys, StsFailure, Tokens};
use super::cache::Sessions;
use crate::tenancy::{DigestKey, Role, ServiceAccount};

/// STS in memory: it answers every call, or with the failure that a role has.
#[derive(Debug, Default)]
pub(crate) struct CountingSts {
    calls: Mutex<Vec<(String, String)>>,
    failures: Mutex<BTreeMap<String, StsFailure>>,
    life: Mutex<Option<Duration>>,
}

impl CountingSts {
    /// The roles that were assumed, and the access keys that assumed them.
    pub(crate) fn calls(&self) -> Vec<(String, String)> {
        self.calls.lock().clone()
    }

    pub(crate) fn count(&self) -> usize {
        self.calls.lock().len()
    }

    pub(crate) fn fail(&self, role: &str, failure: Option<StsFailure>) {
        let mut failures = self.failures.lock();
        match failure {
            Some(failure) => drop(failures.insert(role.to_owned(), failure)),
            None => drop(failures.remove(role)),
        }
    }

    /// Sessions live so long, whatever is asked for.
    pub(crate) fn live(&self, life: Duration) {
        *self.life.lock() = Some(life);
    }

    async fn answer(&self, source: &str, role: &Role) -> Result<Issued, StsFailure> {
        let arn = role.arn.to_string();
        let number = {
            let mut calls = self.calls.lock();
            calls.push((arn.clone(), source.to_owned()));
            calls.len()
        };
        // Others come while STS answers.
        tokio::time::sleep(Duration::from_millis(100)).await;
        if let Some(failure) = self.failures.lock().get(&arn) {
            return Err(failure.clone());
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
    async fn assume_role(&self, source: &Keys, role: &Role, _: &str) -> Result<Issued, StsFailure> {
        self.answer(source.access_key_id(), role).await
    }

    async fn assume_role_with_web_identity(
        &self,
        token: &Secret<String>,
        role: &Role,
        _: &str,
    ) -> Result<Issued, StsFailure> {
        self.answer(token.expose(), role).await
    }

    async fn account(&self, keys: &Keys, _: &str) -> Result<String, StsFailure> {
        self.calls.lock().push((
            "GetCallerIdentity".to_owned(),
            keys.access_key_id().to_owned(),
        ));
        tokio::time::sleep(Duration::from_millis(100)).await;
        if let Some(failure) = self.failures.lock().get("GetCallerIdentity") {
            return Err(failure.clone());
        }
        Ok("999988887777".to_owned())
    }
}

#[derive(Debug)]
pub(crate) struct NamedTokens;

#[async_trait::async_trait]
impl Tokens for NamedTokens {
    async fn token(&self, account: &ServiceAccount) -> Result<Secret<String>, String> {
        match &*account.name {
            "gone" => Err("serviceaccount gone not found".to_owned()),
            name => Ok(Secret::new(format!(
                "token of {}/{name}",
                account.namespace
            ))),
        }
    }
}

/// Sessions over this STS.
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
