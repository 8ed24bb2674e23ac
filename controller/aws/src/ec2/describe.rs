//! EC2's descriptions of instances: `DescribeInstances`.

use std::collections::BTreeMap;
use std::fmt;
use std::time::SystemTime;

use aws_sdk_ec2::primitives::DateTime;
use aws_sdk_ec2::types::{DeviceType, Filter, Instance, InstanceStateName, Reservation};

use super::client::{Ec2, outage};
use super::{Attachment, InstanceFacts, OutageKind, Root};
use crate::credentials::Credentials;

/// The limit of instances of one call: EC2 takes 200 values of a filter, and advises pages for
/// more than a hundred instances.
pub(super) const MAX_IDS: usize = 100;

/// The action that the controller must be allowed.
const ACTION: &str = "ec2:DescribeInstances";

/// The most that EC2 puts on a page: what a call finds fits on one.
const PAGE_LEN: i32 = 1000;

/// Describes instances: EC2, or what stands for it in a test.
#[async_trait::async_trait]
pub trait Describe: fmt::Debug + Send + Sync {
    /// A page of the instances that a query finds, beginning where the last one ended (`next`).
    ///
    /// # Errors
    ///
    /// An outage. What EC2 does not know is not in the answer.
    async fn describe(
        &self,
        credentials: &Credentials,
        region: &str,
        query: &Query,
        next: Option<&str>,
    ) -> Result<Page, OutageKind>;
}

/// The instances that a call asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Query {
    /// The instances with these IDs, a hundred at most.
    Ids(Vec<String>),
    /// The instances with all of these tags.
    Tags(BTreeMap<String, String>),
}

/// A part of an answer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Page {
    /// The instances.
    pub instances: Vec<InstanceFacts>,
    /// The token of the next page, if there is one.
    pub next: Option<String>,
}

#[async_trait::async_trait]
impl Describe for Ec2 {
    async fn describe(
        &self,
        credentials: &Credentials,
        region: &str,
        query: &Query,
        next: Option<&str>,
    ) -> Result<Page, OutageKind> {
        let call = self
            .client(credentials, region)
            .describe_instances()
            .set_filters(Some(filters(query)))
            .max_results(PAGE_LEN)
            .set_next_token(next.map(str::to_owned));
        let output = call.send().await;
        let output = output.map_err(|error| outage(ACTION, &error));
        self.count("DescribeInstances", &output);
        let output = output?;
        let instances = output.reservations().iter().flat_map(of_reservation);
        Ok(Page {
            instances: instances.collect(),
            next: output.next_token,
        })
    }
}

/// With filters, an ID that EC2 does not know is no error for the others.
fn filters(query: &Query) -> Vec<Filter> {
    let filter = |name: &str, values| {
        let filter = Filter::builder().name(name);
        filter.set_values(Some(values)).build()
    };
    match query {
        Query::Ids(ids) => vec![filter("instance-id", ids.clone())],
        Query::Tags(tags) => tags
            .iter()
            .map(|(key, value)| filter(&format!("tag:{key}"), vec![literal(value)]))
            .collect(),
    }
}

/// The filter's value for exactly this: `*` and `?` stand for others in a filter.
fn literal(value: &str) -> String {
    let escaped = value.replace('\\', r"\\");
    escaped.replace('*', r"\*").replace('?', r"\?")
}

fn of_reservation(reservation: &Reservation) -> impl Iterator<Item = InstanceFacts> {
    let owner = reservation.owner_id().unwrap_or_default();
    let instances = reservation.instances().iter();
    instances.map(move |instance| facts(owner, instance))
}

fn facts(owner: &str, instance: &Instance) -> InstanceFacts {
    let text = |text: Option<&str>| text.unwrap_or_default().to_owned();
    let state = instance.state().and_then(|state| state.name());
    let placement = instance.placement();
    let name = instance.private_dns_name().filter(|name| !name.is_empty());
    let addresses = [instance.private_ip_address(), instance.ipv6_address()];
    let addresses = addresses.into_iter().flatten();
    let tags = instance.tags().iter();
    InstanceFacts {
        id: text(instance.instance_id()),
        owner: owner.to_owned(),
        state: text(state.map(InstanceStateName::as_str)),
        zone: text(placement.and_then(|placement| placement.availability_zone())),
        launched: time(instance.launch_time()),
        private_dns_name: name.map(str::to_owned),
        addresses: addresses
            .filter_map(|address| address.parse().ok())
            .collect(),
        first_interface: first_interface(instance),
        root: root(instance),
        tags: tags
            .filter_map(|tag| Some((tag.key()?.to_owned(), text(tag.value()))))
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
    let volume = root.and_then(|device| device.ebs());
    Root::Volume(volume.map(|volume| Attachment {
        time: time(volume.attach_time()),
    }))
}

fn time(time: Option<&DateTime>) -> Option<SystemTime> {
    time.and_then(|time| SystemTime::try_from(*time).ok())
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
