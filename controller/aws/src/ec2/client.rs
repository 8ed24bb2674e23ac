//! EC2 by the SDK: its clients, and what their errors mean.

use std::collections::BTreeMap;
use std::error::Error as StdError;
use std::iter;

use aws_credential_types::provider::error::CredentialsError;
use aws_sdk_ec2::Client;
use aws_sdk_ec2::config::Region;
use aws_sdk_ec2::config::retry::RetryConfig;
use aws_sdk_ec2::error::{ProvideErrorMetadata, SdkError};
use node_attestation_runtime::metrics::{CloudResult, Metrics};
use node_attestation_runtime::shared::{Shared, Swept};

use super::OutageKind;
use crate::credentials::{Credentials, CredentialsKey, Lease, timeouts};

/// More clients than a fleet has tenants and regions in use; at it, a few are made again.
const MAX_CLIENTS: usize = 4096;

/// Settings of the client of EC2.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ec2Settings {
    /// The URL of EC2 in a region, such as that of a VPC endpoint; otherwise the SDK's.
    pub endpoints: BTreeMap<String, String>,
}

/// EC2 itself.
#[derive(derive_more::Debug)]
#[debug("Ec2({settings:?})")]
pub struct Ec2 {
    settings: Ec2Settings,
    clients: Shared<Swept<(CredentialsKey, String), (Client, Lease)>>,
    metrics: Metrics,
}

impl Ec2 {
    /// EC2 by the SDK.
    pub fn new(settings: Ec2Settings) -> Self {
        Self {
            settings,
            clients: Shared::new("clients of EC2", Swept::default()),
            metrics: Metrics::default(),
        }
    }

    /// The same, which counts its calls.
    #[must_use]
    pub fn measured_by(self, metrics: Metrics) -> Self {
        Self { metrics, ..self }
    }

    /// Counts a call of this operation.
    pub(super) fn count<T>(&self, operation: &'static str, answer: &Result<T, OutageKind>) {
        let result = match answer {
            Ok(_) | Err(OutageKind::NotFound(_)) => CloudResult::Ok,
            Err(OutageKind::Throttled(_)) => CloudResult::Throttled,
            Err(OutageKind::Credentials(_) | OutageKind::NotAllowed(..)) => CloudResult::Refused,
            Err(OutageKind::TimedOut) => CloudResult::TimedOut,
            Err(
                OutageKind::Unreachable(_)
                | OutageKind::Failed(_)
                | OutageKind::TooMuch
                | OutageKind::Busy
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
        let dead = self.clients.write(|clients| {
            let is_full = clients.len() >= MAX_CLIENTS;
            clients.insert(key, new, |_, (_, lease)| is_full || lease.is_over())
        });
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
            // Who asks tries again, and knows how many others do.
            .retry_config(RetryConfig::disabled())
            .timeout_config(timeouts());
        if let Some(endpoint) = self.settings.endpoints.get(region) {
            config = config.endpoint_url(endpoint);
        }
        Client::from_conf(config.build())
    }
}

/// Why a call of this action failed.
pub(super) fn outage<E>(action: &'static str, error: &SdkError<E>) -> OutageKind
where
    E: ProvideErrorMetadata + StdError + 'static,
{
    match error {
        SdkError::TimeoutError(_) => OutageKind::TimedOut,
        SdkError::ServiceError(answer) => match answer.err().code() {
            Some(code) => OutageKind::of_code(action, code),
            None => OutageKind::Unreachable("its answer cannot be read"),
        },
        _ if is_of_credentials(error) => OutageKind::Credentials("none could be found".to_owned()),
        SdkError::DispatchFailure(failure) if failure.is_timeout() => OutageKind::TimedOut,
        SdkError::ResponseError(_) => OutageKind::Unreachable("its answer cannot be read"),
        SdkError::DispatchFailure(_) => OutageKind::Unreachable("no connection"),
        SdkError::ConstructionFailure(_) => OutageKind::Unreachable("no request could be made"),
        _ => OutageKind::Unreachable("the SDK failed otherwise"),
    }
}

fn is_of_credentials(error: &(dyn StdError + 'static)) -> bool {
    let mut causes = iter::successors(error.source(), |&error| error.source());
    causes.any(<dyn StdError>::is::<CredentialsError>)
}
