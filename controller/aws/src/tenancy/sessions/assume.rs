//! The STS calls: `AssumeRole`, `AssumeRoleWithWebIdentity`, `GetCallerIdentity`.

use std::error::Error as StdError;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::SystemTime;

use aws_credential_types::provider::SharedCredentialsProvider;
use aws_sdk_sts::Client;
use aws_sdk_sts::config::retry::RetryConfig;
use aws_sdk_sts::config::{IdentityCache, Region, SharedHttpClient};
use aws_sdk_sts::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_sts::operation::RequestId;
use aws_sdk_sts::types::{Credentials as StsCredentials, PolicyDescriptorType};
use futures::future::FutureExt as _;
use kubelet_attestation::secret::Secret;
use node_attestation_runtime::metrics::{CloudResult, Metrics};
use std::collections::BTreeMap;

use super::error::{FailureKind, TokenError};
use crate::credentials::{CredentialsSource, Tenant, app_name, timeouts};
use crate::error_codes::{Meaning, bounded, denied_action};
use crate::partition::of_region;
use crate::tenancy::{Role, ServiceAccount};

/// The SDK's credentials.
pub type Keys = aws_credential_types::Credentials;

/// Credentials that STS issued.
#[derive(Debug, Clone)]
pub struct Issued {
    /// The credentials.
    pub keys: Keys,
    /// The expiry time of the credentials.
    pub expires: SystemTime,
}

/// The STS operations that are used.
#[async_trait::async_trait]
pub trait AssumeRole: Debug + Send + Sync {
    /// Assumes a role with the credentials of its source.
    async fn assume_role(
        &self,
        source: &Keys,
        role: &Role,
        region: &str,
    ) -> Result<Issued, FailureKind>;

    /// Assumes a role with a service account token.
    async fn assume_role_with_web_identity(
        &self,
        token: &Secret<String>,
        role: &Role,
        region: &str,
    ) -> Result<Issued, FailureKind>;

    /// Returns the account of these credentials.
    async fn account(&self, keys: &Keys, region: &str) -> Result<String, FailureKind>;
}

/// A source of service account tokens.
#[async_trait::async_trait]
pub trait Tokens: Debug + Send + Sync {
    /// Creates a token for the service account.
    async fn token(&self, account: &ServiceAccount) -> Result<Secret<String>, TokenError>;
}

/// STS, called through the SDK.
#[derive(Debug)]
pub struct SdkSts {
    /// The source of the HTTP client and the settings. Its credentials are not used.
    base: Arc<dyn CredentialsSource>,
    endpoints: BTreeMap<String, String>,
    /// The HTTP client for these endpoints, if it differs from the client of `base`.
    http_client: Option<SharedHttpClient>,
    metrics: Metrics,
}

impl SdkSts {
    /// Creates a client that calls the STS of each region with the HTTP client from `base`. If `endpoints` contains a
    /// URL for the region, the client calls that URL with `http_client`.
    pub fn new(
        base: Arc<dyn CredentialsSource>,
        endpoints: BTreeMap<String, String>,
        http_client: Option<SharedHttpClient>,
    ) -> Self {
        Self {
            base,
            endpoints,
            http_client,
            metrics: Metrics::default(),
        }
    }

    /// Counts the calls with these metrics.
    #[must_use]
    pub fn measured_by(self, metrics: Metrics) -> Self {
        Self { metrics, ..self }
    }

    /// Counts the response to a call, and returns it.
    fn counted<T, E>(
        &self,
        operation: &'static str,
        answer: Result<T, SdkError<E>>,
    ) -> Result<T, FailureKind>
    where
        E: ProvideErrorMetadata + StdError + 'static,
    {
        let is_late = match &answer {
            Err(SdkError::DispatchFailure(error)) => error.is_timeout(),
            Err(error) => matches!(error, SdkError::TimeoutError(_)),
            Ok(_) => false,
        };
        let answer = answer.map_err(|error| failure(operation, &error));
        let result = match &answer {
            Ok(_) => CloudResult::Ok,
            Err(FailureKind::Throttled(_)) => CloudResult::Throttled,
            Err(FailureKind::Refused { .. } | FailureKind::ActionDenied { .. }) => {
                CloudResult::Refused
            }
            Err(_) if is_late => CloudResult::TimedOut,
            Err(_) => CloudResult::Failed,
        };
        self.metrics.cloud_called(("sts", operation), result);
        answer
    }

    /// Returns the home region if the STS failure might be limited to this region: the account might not have enabled
    /// it. A session is valid in every region, regardless of where it was created. The home region is the controller's
    /// own region if it is in the same partition. Otherwise, it is the partition's first region.
    async fn home_after(&self, failed: Option<&FailureKind>, region: &str) -> Option<String> {
        if !failed?.may_be_of_region() {
            return None;
        }
        let partition = of_region(region)?;
        let base = self.base.credentials(&Tenant::Controller, region).await;
        let own = base
            .ok()
            .and_then(|base| base.config.region().map(ToString::to_string));
        let own = own.filter(|own| of_region(own) == Some(partition));
        let home = own.unwrap_or_else(|| partition.home.to_owned());
        (home != region).then_some(home)
    }

    async fn assume_in(
        &self,
        source: &Keys,
        role: &Role,
        region: &str,
    ) -> Result<Issued, FailureKind> {
        let call = self
            .client(Some(source), region)
            .await?
            .assume_role()
            .role_arn(role.arn.to_string())
            .role_session_name(&role.session_name)
            .duration_seconds(seconds(role))
            .set_external_id(role.external_id.clone())
            .set_policy(role.inline_policy.clone())
            .set_policy_arns(policy_arns(role));
        let answer = self.counted("AssumeRole", call.send().boxed().await)?;
        issued(answer.credentials)
    }

    async fn assume_with_token_in(
        &self,
        token: &Secret<String>,
        role: &Role,
        region: &str,
    ) -> Result<Issued, FailureKind> {
        let call = self
            .client(None, region)
            .await?
            .assume_role_with_web_identity()
            .role_arn(role.arn.to_string())
            .role_session_name(&role.session_name)
            .duration_seconds(seconds(role))
            .web_identity_token(token.expose())
            .set_policy(role.inline_policy.clone())
            .set_policy_arns(policy_arns(role));
        let answer = self.counted("AssumeRoleWithWebIdentity", call.send().boxed().await)?;
        issued(answer.credentials)
    }

    async fn account_in(&self, keys: &Keys, region: &str) -> Result<String, FailureKind> {
        let call = self.client(Some(keys), region).await?.get_caller_identity();
        let answer = self.counted("GetCallerIdentity", call.send().boxed().await)?;
        answer.account.ok_or_else(unreadable)
    }

    async fn client(&self, keys: Option<&Keys>, region: &str) -> Result<Client, FailureKind> {
        let base = self.base.credentials(&Tenant::Controller, region).await;
        let base = base.map_err(|error| FailureKind::Unavailable(error.to_string()))?;
        let mut config = aws_sdk_sts::config::Builder::from(&base.config)
            .region(Region::new(region.to_owned()))
            .identity_cache(IdentityCache::no_cache())
            .retry_config(RetryConfig::disabled())
            .timeout_config(timeouts());
        config.set_app_name(app_name());
        if let Some(keys) = keys {
            config = config.credentials_provider(SharedCredentialsProvider::new(keys.clone()));
        }
        if let Some(endpoint) = self.endpoints.get(region) {
            config = config.endpoint_url(endpoint);
            if let Some(client) = &self.http_client {
                config = config.http_client(client.clone());
            }
        }
        Ok(Client::from_conf(config.build()))
    }
}

#[async_trait::async_trait]
impl AssumeRole for SdkSts {
    async fn assume_role(
        &self,
        source: &Keys,
        role: &Role,
        region: &str,
    ) -> Result<Issued, FailureKind> {
        let answer = self.assume_in(source, role, region).await;
        match self.home_after(answer.as_ref().err(), region).await {
            Some(home) => or_first(answer, self.assume_in(source, role, &home).await),
            None => answer,
        }
    }

    async fn assume_role_with_web_identity(
        &self,
        token: &Secret<String>,
        role: &Role,
        region: &str,
    ) -> Result<Issued, FailureKind> {
        let answer = self.assume_with_token_in(token, role, region).await;
        match self.home_after(answer.as_ref().err(), region).await {
            Some(home) => or_first(answer, self.assume_with_token_in(token, role, &home).await),
            None => answer,
        }
    }

    async fn account(&self, keys: &Keys, region: &str) -> Result<String, FailureKind> {
        let answer = self.account_in(keys, region).await;
        match self.home_after(answer.as_ref().err(), region).await {
            Some(home) => or_first(answer, self.account_in(keys, &home).await),
            None => answer,
        }
    }
}

/// Returns the response from the home region. If the home region is not available, returns the first response.
fn or_first<T>(
    first: Result<T, FailureKind>,
    home: Result<T, FailureKind>,
) -> Result<T, FailureKind> {
    match home {
        Err(FailureKind::Unavailable(_) | FailureKind::Throttled(_)) => first,
        answer => answer,
    }
}

fn seconds(role: &Role) -> i32 {
    role.duration.as_secs().try_into().unwrap_or(i32::MAX)
}

fn policy_arns(role: &Role) -> Option<Vec<PolicyDescriptorType>> {
    let arns = role.policy_arns.iter();
    let arns = arns.map(|arn| PolicyDescriptorType::builder().arn(arn).build());
    Some(arns.collect()).filter(|arns: &Vec<_>| !arns.is_empty())
}

fn issued(credentials: Option<StsCredentials>) -> Result<Issued, FailureKind> {
    let credentials = credentials.ok_or_else(unreadable)?;
    let expires = SystemTime::try_from(credentials.expiration).map_err(|_| unreadable())?;
    let keys = Keys::new(
        credentials.access_key_id,
        credentials.secret_access_key,
        Some(credentials.session_token),
        Some(expires),
        "STS",
    );
    Ok(Issued { keys, expires })
}

fn unreadable() -> FailureKind {
    FailureKind::Unavailable("STS returned an invalid response".to_owned())
}

fn failure<E>(operation: &str, error: &SdkError<E>) -> FailureKind
where
    E: ProvideErrorMetadata + StdError + 'static,
{
    let unavailable = |detail: &str| FailureKind::Unavailable(detail.to_owned());
    match error {
        SdkError::TimeoutError(_) => unavailable("no response in time"),
        SdkError::DispatchFailure(failure) if failure.is_timeout() => {
            unavailable("no response in time")
        }
        SdkError::DispatchFailure(_) => unavailable("no connection"),
        SdkError::ServiceError(answer) => {
            let answer = answer.err();
            let another = answer.message().and_then(denied_action);
            let another = another.filter(|action| *action != format!("sts:{operation}"));
            match (answer.code(), another) {
                (Some(code), Some(action)) if Meaning::of(code) == Meaning::NotAllowed => {
                    FailureKind::ActionDenied {
                        action,
                        request_id: error.request_id().map(bounded),
                    }
                }
                (Some(code), _) => of_code(code, error.request_id()),
                (None, _) => unreadable(),
            }
        }
        SdkError::ResponseError(_) => unreadable(),
        SdkError::ConstructionFailure(_) | _ => unavailable("cannot create the request"),
    }
}

/// Returns the meaning of a code. Refusals are the common codes of all services, and the codes of `AssumeRole` and
/// `AssumeRoleWithWebIdentity`. Every other code is a failure of STS.
fn of_code(code: &str, request_id: Option<&str>) -> FailureKind {
    let kept = bounded(code);
    let is_refusal = matches!(
        code,
        "IDPRejectedClaim"
            | "InvalidIdentityToken"
            | "MalformedPolicyDocument"
            | "PackedPolicyTooLarge"
            | "RegionDisabledException"
            | "ValidationError"
    );
    match Meaning::of(code) {
        Meaning::Throttled => FailureKind::Throttled(kept),
        Meaning::Other if !is_refusal => FailureKind::Unavailable(format!("STS returned {kept}")),
        Meaning::NotAllowed | Meaning::Session | Meaning::Account | Meaning::Other => {
            FailureKind::Refused {
                code: kept,
                request_id: request_id.map(bounded),
            }
        }
    }
}

#[cfg(test)]
mod tests;
