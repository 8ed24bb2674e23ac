//! The one call of EC2 that is made: `DescribeInstances`.

use std::collections::{BTreeMap, HashMap};
use std::error::Error as StdError;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use aws_credential_types::provider::error::CredentialsError;
use aws_sdk_ec2::Client;
use aws_sdk_ec2::config::Region;
use aws_sdk_ec2::config::retry::RetryConfig;
use aws_sdk_ec2::config::timeout::TimeoutConfig;
use aws_sdk_ec2::error::{ProvideErrorMetadata as _, SdkError};
use aws_sdk_ec2::operation::describe_instances::DescribeInstancesError;
use aws_sdk_ec2::primitives::DateTime;
use aws_sdk_ec2::types::{DeviceType, Filter, Instance, Reservation};
use futures::future::{BoxFuture, FutureExt as _};

use super::{Attachment, InstanceFacts, Outage, Root};
use crate::credentials::{Credentials, CredentialsKey};

/// How many instances one call asks for: EC2 takes 200 values of a filter, and advises pages for
/// more than a hundred instances.
pub const MAX_IDS: usize = 100;

/// The most that EC2 puts on a page: what a call finds fits on one.
const PAGE_LEN: i32 = 1000;

/// A connection takes milliseconds.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// EC2 answers within a second; a request that waits longer is better tried again.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// More clients than a fleet has tenants and regions in use; at it, all are made anew.
const MAX_CLIENTS: usize = 4096;

/// Describes instances: EC2, or what stands for it in a test.
pub trait Describe: fmt::Debug + Send + Sync {
    /// A page of the instances that a query finds, beginning where the last one ended (`next`).
    ///
    /// # Errors
    ///
    /// An outage. What EC2 does not know is not in the answer.
    fn describe<'a>(
        &'a self,
        credentials: &'a Credentials,
        region: &'a str,
        query: &'a Query,
        next: Option<&'a str>,
    ) -> BoxFuture<'a, Result<Page, Outage>>;
}

/// Which instances are asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "every source reads it")]
pub enum Query {
    /// Those with these IDs, [`MAX_IDS`] at most.
    Ids(Vec<String>),
    /// Those with all of these tags.
    Tags(BTreeMap<String, String>),
}

/// A part of an answer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "every source writes one out")]
pub struct Page {
    /// The instances.
    pub instances: Vec<InstanceFacts>,
    /// Where the next page begins, if there is one.
    pub next: Option<String>,
}

/// Where EC2 is asked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "the manager writes one out")]
pub struct Ec2Settings {
    /// The URL of EC2 in a region, such as that of a VPC endpoint; otherwise the SDK's.
    pub endpoints: BTreeMap<String, String>,
}

/// EC2 itself.
pub struct Ec2 {
    settings: Ec2Settings,
    clients: Mutex<HashMap<(CredentialsKey, String), Client>>,
}

impl Ec2 {
    /// EC2 by the SDK.
    pub fn new(settings: Ec2Settings) -> Self {
        Self {
            settings,
            clients: Mutex::default(),
        }
    }

    fn client(&self, credentials: &Credentials, region: &str) -> Client {
        let key = (credentials.key, region.to_owned());
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        if clients.len() >= MAX_CLIENTS && !clients.contains_key(&key) {
            clients.clear();
        }
        let made = || self.make(credentials, region);
        clients.entry(key).or_insert_with(made).clone()
    }

    fn make(&self, credentials: &Credentials, region: &str) -> Client {
        let timeouts = TimeoutConfig::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .read_timeout(CALL_TIMEOUT)
            .operation_attempt_timeout(CALL_TIMEOUT)
            .operation_timeout(CALL_TIMEOUT)
            .build();
        let mut config = aws_sdk_ec2::config::Builder::from(&credentials.config)
            .region(Region::new(region.to_owned()))
            // Who asks tries again, and knows how many others do.
            .retry_config(RetryConfig::disabled())
            .timeout_config(timeouts);
        if let Some(endpoint) = self.settings.endpoints.get(region) {
            config = config.endpoint_url(endpoint);
        }
        Client::from_conf(config.build())
    }
}

impl fmt::Debug for Ec2 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ec2")
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

impl Describe for Ec2 {
    fn describe<'a>(
        &'a self,
        credentials: &'a Credentials,
        region: &'a str,
        query: &'a Query,
        next: Option<&'a str>,
    ) -> BoxFuture<'a, Result<Page, Outage>> {
        let call = self
            .client(credentials, region)
            .describe_instances()
            .set_filters(Some(filters(query)))
            .max_results(PAGE_LEN)
            .set_next_token(next.map(str::to_owned));
        async move {
            let output = call.send().await.map_err(|error| outage(region, &error))?;
            Ok(Page {
                instances: output
                    .reservations()
                    .iter()
                    .flat_map(of_reservation)
                    .collect(),
                next: output.next_token,
            })
        }
        .boxed()
    }
}

/// With filters, an ID that EC2 does not know is no error for the others.
fn filters(query: &Query) -> Vec<Filter> {
    let filter = |name: String, values| {
        Filter::builder()
            .name(name)
            .set_values(Some(values))
            .build()
    };
    match query {
        Query::Ids(ids) => vec![filter("instance-id".to_owned(), ids.clone())],
        Query::Tags(tags) => tags
            .iter()
            .map(|(key, value)| filter(format!("tag:{key}"), vec![literal(value)]))
            .collect(),
    }
}

/// The filter's value for exactly this: `*` and `?` stand for others in a filter.
fn literal(value: &str) -> String {
    let mut literal = String::with_capacity(value.len());
    for char in value.chars() {
        if matches!(char, '*' | '?' | '\\') {
            literal.push('\\');
        }
        literal.push(char);
    }
    literal
}

fn of_reservation(reservation: &Reservation) -> impl Iterator<Item = InstanceFacts> {
    let owner = reservation.owner_id().unwrap_or_default();
    let instances = reservation.instances().iter();
    instances.map(move |instance| facts(owner, instance))
}

fn facts(owner: &str, instance: &Instance) -> InstanceFacts {
    let state = instance.state().and_then(|state| state.name());
    let zone = instance
        .placement()
        .and_then(|placement| placement.availability_zone());
    let named = |name: &str| Some(name.to_owned()).filter(|name| !name.is_empty());
    let addresses = [instance.private_ip_address(), instance.ipv6_address()];
    InstanceFacts {
        id: instance.instance_id().unwrap_or_default().to_owned(),
        owner: owner.to_owned(),
        state: state
            .map(|name| name.as_str().to_owned())
            .unwrap_or_default(),
        zone: zone.unwrap_or_default().to_owned(),
        launched: time(instance.launch_time()),
        private_dns_name: instance.private_dns_name().and_then(named),
        addresses: addresses
            .into_iter()
            .flatten()
            .filter_map(|address| address.parse().ok())
            .collect(),
        first_interface: first_interface(instance),
        root: root(instance),
        tags: instance
            .tags()
            .iter()
            .filter_map(|tag| {
                Some((
                    tag.key()?.to_owned(),
                    tag.value().unwrap_or_default().to_owned(),
                ))
            })
            .collect(),
    }
}

fn first_interface(instance: &Instance) -> Option<Attachment> {
    let mut attachments = instance
        .network_interfaces()
        .iter()
        .filter_map(|interface| interface.attachment());
    let first = attachments.find(|attachment| {
        // A card other than the first may have an index 0 too.
        attachment.device_index() == Some(0) && attachment.network_card_index().unwrap_or(0) == 0
    })?;
    Some(Attachment {
        time: time(first.attach_time()),
    })
}

fn root(instance: &Instance) -> Root {
    if instance.root_device_type() == Some(&DeviceType::InstanceStore) {
        return Root::InstanceStore;
    }
    let mut devices = instance.block_device_mappings().iter();
    let root = instance
        .root_device_name()
        .and_then(|name| devices.find(|device| device.device_name() == Some(name)));
    Root::Volume(
        root.and_then(|device| device.ebs())
            .map(|volume| Attachment {
                time: time(volume.attach_time()),
            }),
    )
}

fn time(time: Option<&DateTime>) -> Option<SystemTime> {
    time.and_then(|time| SystemTime::try_from(*time).ok())
}

fn outage(region: &str, error: &SdkError<DescribeInstancesError>) -> Outage {
    let region_name = region.to_owned();
    match error {
        SdkError::TimeoutError(_) => Outage::TimedOut {
            region: region_name,
        },
        SdkError::ServiceError(answer) => match answer.err().code() {
            Some(code) => Outage::of_code(region, code),
            None => Outage::Unreachable {
                region: region_name,
                what: "its answer cannot be read",
            },
        },
        _ if is_of_credentials(error) => Outage::Credentials {
            region: region_name,
            code: "none could be found".to_owned(),
        },
        SdkError::DispatchFailure(failure) if failure.is_timeout() => Outage::TimedOut {
            region: region_name,
        },
        SdkError::ResponseError(_) => Outage::Unreachable {
            region: region_name,
            what: "its answer cannot be read",
        },
        SdkError::DispatchFailure(_) => Outage::Unreachable {
            region: region_name,
            what: "no connection",
        },
        SdkError::ConstructionFailure(_) => Outage::Unreachable {
            region: region_name,
            what: "no request could be made",
        },
        _ => Outage::Unreachable {
            region: region_name,
            what: "the SDK failed otherwise",
        },
    }
}

fn is_of_credentials(error: &SdkError<DescribeInstancesError>) -> bool {
    let mut cause = error.source();
    while let Some(error) = cause {
        if error.is::<CredentialsError>() {
            return true;
        }
        cause = error.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tags_value_stands_for_itself_only() {
        let tags = BTreeMap::from([("a".to_owned(), r"x*y?z\".to_owned())]);

        let [filter] = &filters(&Query::Tags(tags))[..] else {
            panic!("one tag, one filter")
        };

        assert_eq!(filter.name(), Some("tag:a"));
        assert_eq!(filter.values(), [r"x\*y\?z\\"]);
    }
}
