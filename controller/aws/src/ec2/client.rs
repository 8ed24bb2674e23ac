//! The SDK clients for EC2, and the meaning of their errors.

use std::collections::BTreeMap;
use std::error::Error as StdError;
use std::iter;

use aws_credential_types::provider::error::CredentialsError;
use aws_sdk_ec2::Client;
use aws_sdk_ec2::config::Region;
use aws_sdk_ec2::config::retry::RetryConfig;
use aws_sdk_ec2::error::{ProvideErrorMetadata, SdkError};
use node_attestation_runtime::metrics::{CloudResult, Metrics};
use node_attestation_runtime::shared::{Lock, Shared, Swept};

use super::OutageKind;
use crate::credentials::{Credentials, CredentialsKey, Lease, app_name, timeouts};
use crate::error_codes;

/// Settings of the EC2 client.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ec2Settings {
    /// The EC2 URL for a region, such as the URL of a VPC endpoint. By default, the SDK's URL.
    pub endpoints: BTreeMap<String, String>,
}

/// The EC2 API.
#[derive(derive_more::Debug)]
#[debug("Ec2({settings:?})")]
pub struct Ec2 {
    settings: Ec2Settings,
    /// The clients, keyed by credentials and region. A client is kept as long as the lease on its credentials.
    clients: Shared<Swept<(CredentialsKey, String), (Client, Lease)>>,
    metrics: Metrics,
}

impl Ec2 {
    /// Creates a client with the SDK.
    pub fn new(settings: Ec2Settings) -> Self {
        Self {
            settings,
            clients: Shared::new(Lock::Ec2Clients, Swept::default()),
            metrics: Metrics::default(),
        }
    }

    /// Counts the calls with these metrics.
    #[must_use]
    pub fn measured_by(self, metrics: Metrics) -> Self {
        Self { metrics, ..self }
    }

    /// Counts a call to this operation.
    pub(super) fn count<T>(&self, operation: &'static str, answer: &Result<T, OutageKind>) {
        let result = match answer {
            Ok(_) | Err(OutageKind::NotFound(_)) => CloudResult::Ok,
            Err(OutageKind::Throttled(_)) => CloudResult::Throttled,
            Err(OutageKind::Credentials(_) | OutageKind::NotAllowed(..)) => CloudResult::Refused,
            Err(OutageKind::TimedOut) => CloudResult::TimedOut,
            Err(
                OutageKind::Unreachable(_)
                | OutageKind::InvalidResponse(_)
                | OutageKind::Failed(_)
                | OutageKind::TooMuch
                | OutageKind::Busy
                | OutageKind::TooManyRegions
                | OutageKind::Unnamed(_)
                | OutageKind::NoKey(..),
            ) => CloudResult::Failed,
        };
        self.metrics.cloud_called(("ec2", operation), result);
    }

    pub(super) fn client(&self, credentials: &Credentials, region: &str) -> Client {
        let key = (credentials.key, region.to_owned());
        let known = self.clients.read(|clients| {
            let (client, lease) = clients.get(&key)?;
            (!lease.is_over()).then(|| client.clone())
        });
        if let Some(client) = known {
            return client;
        }
        let client = self.make(credentials, region);
        let new = (client.clone(), credentials.cached().lease);
        let dead = self
            .clients
            .write(|clients| clients.insert(key, new, |_, (_, lease)| lease.is_over()));
        drop(dead);
        client
    }

    #[cfg(test)]
    pub(super) fn kept(&self) -> usize {
        self.clients.read(Swept::len)
    }

    fn make(&self, credentials: &Credentials, region: &str) -> Client {
        let mut config = aws_sdk_ec2::config::Builder::from(&credentials.config)
            .region(Region::new(region.to_owned()))
            // The callers retry, because they know how many other calls are waiting.
            .retry_config(RetryConfig::disabled())
            .timeout_config(timeouts());
        config.set_app_name(app_name());
        if let Some(endpoint) = self.settings.endpoints.get(region) {
            config = config.endpoint_url(endpoint);
        }
        Client::from_conf(config.build())
    }
}

/// Returns the reason why a call to this action failed.
pub(super) fn outage<E>(action: &'static str, error: &SdkError<E>) -> OutageKind
where
    E: ProvideErrorMetadata + StdError + 'static,
{
    match error {
        SdkError::TimeoutError(_) => OutageKind::TimedOut,
        SdkError::ServiceError(answer) => match answer.err().code() {
            Some(code) => OutageKind::of_code(action, code),
            None => OutageKind::InvalidResponse("it cannot be parsed"),
        },
        SdkError::ConstructionFailure(_)
        | SdkError::DispatchFailure(_)
        | SdkError::ResponseError(_)
        | _ => of_credentials(error).map_or_else(|| not_sent(error), OutageKind::Credentials),
    }
}

/// Returns the reason why EC2 did not respond.
fn not_sent<E>(error: &SdkError<E>) -> OutageKind {
    match error {
        SdkError::DispatchFailure(failure) if failure.is_timeout() => OutageKind::TimedOut,
        SdkError::ResponseError(_) => OutageKind::InvalidResponse("it cannot be parsed"),
        SdkError::DispatchFailure(_) => OutageKind::Unreachable("no connection"),
        SdkError::ConstructionFailure(_) => OutageKind::Unreachable("cannot create the request"),
        SdkError::TimeoutError(_) | SdkError::ServiceError(_) | _ => {
            OutageKind::Unreachable("unknown AWS SDK error")
        }
    }
}

/// The reason for missing credentials, if they are the cause of the error.
fn of_credentials(error: &(dyn StdError + 'static)) -> Option<String> {
    let mut causes = iter::successors(error.source(), |&error| error.source());
    let found = causes.find_map(|error| error.downcast_ref::<CredentialsError>())?;
    if matches!(found, CredentialsError::CredentialsNotLoaded(_)) {
        return Some("no credentials were found".to_owned());
    }
    Some(error_codes::causes(found))
}

#[cfg(test)]
mod tests {
    use aws_config::{BehaviorVersion, SdkConfig};
    use aws_credential_types::credential_fn::provide_credentials_fn;
    use aws_credential_types::provider::SharedCredentialsProvider;

    use aws_smithy_runtime_api::client::result::ConnectorError;
    use node_attestation_runtime::metrics::Format;

    use super::*;
    use crate::ec2::{Describe as _, Query};

    #[derive(Debug, thiserror::Error)]
    #[error("service error")]
    struct ServiceError(#[source] Box<dyn StdError + Send + Sync>);

    /// The error for a web identity that STS rejects. In the SDK's error, the message from STS is the cause of the
    /// cause.
    async fn refused() -> Result<aws_credential_types::Credentials, CredentialsError> {
        let answer = "InvalidIdentityToken: No OpenIDConnect provider found";
        Err(CredentialsError::provider_error(ServiceError(
            answer.into(),
        )))
    }

    /// Sends a query with credentials that STS rejects.
    async fn ask(ec2: &Ec2) -> OutageKind {
        let config = SdkConfig::builder()
            .behavior_version(BehaviorVersion::latest())
            .credentials_provider(SharedCredentialsProvider::new(provide_credentials_fn(
                refused,
            )))
            .build();
        let credentials = Credentials {
            config,
            ..crate::testing::credentials(1, "AKIA")
        };
        let query = Query::Ids(vec!["i-0123456789abcdef0".to_owned()]);
        let asked = ec2.describe(&credentials, "eu-west-1", &query, None);
        asked.await.unwrap_err()
    }

    #[test]
    fn a_connection_timeout_is_distinguished_from_a_missing_connection() {
        let outage = |failure| not_sent(&SdkError::<()>::dispatch_failure(failure));

        let late = outage(ConnectorError::timeout("no answer".into()));
        assert!(matches!(late, OutageKind::TimedOut), "{late:?}");
        let refused = outage(ConnectorError::io("refused".into()));
        assert!(
            matches!(refused, OutageKind::Unreachable("no connection")),
            "{refused:?}"
        );
    }

    #[tokio::test]
    async fn a_call_is_counted_by_its_result() {
        let metrics = Metrics::new("1");

        ask(&Ec2::new(Ec2Settings::default()).measured_by(metrics.clone())).await;

        let text = metrics.text(Format::Prometheus);
        let mut calls = text.lines();
        let call = calls.find(|line| line.contains("operation=\"DescribeInstances\""));
        let call = call.unwrap_or_else(|| panic!("{text}"));
        assert!(call.contains("result=\"refused\""), "{call}");
    }

    #[tokio::test]
    async fn the_outage_contains_the_causes_of_missing_credentials() {
        let outage = ask(&Ec2::new(Ec2Settings::default())).await;

        assert_eq!(
            outage.to_string(),
            "cannot be called with the cluster's AWS credentials: an error occurred while loading credentials: \
             service error: InvalidIdentityToken: No OpenIDConnect provider found"
        );
    }
}
