//! EC2's descriptions of instances: `DescribeInstances`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::time::SystemTime;

use aws_sdk_ec2::primitives::DateTime;
use aws_sdk_ec2::types::{
    DeviceType, Filter, Instance, InstanceIpv6Address, InstanceNetworkInterfaceAssociation,
    InstanceSecondaryInterfacePrivateIpAddress as SecondaryAddress, InstanceStateName, Reservation,
};
use futures::future::FutureExt as _;
use node_attestation_core::identifiers::dns_form;

use super::client::{Ec2, outage};
use super::{Attachment, InstanceFacts, OutageKind, RootDevice};
use crate::credentials::Credentials;

/// The maximum number of instances in one call. EC2 accepts 200 values in a filter, and recommends paging for more than
/// 100 instances.
pub(super) const MAX_IDS: usize = 100;

/// The action that the controller's IAM policy must allow.
const ACTION: &str = "ec2:DescribeInstances";

/// The maximum page size in EC2. The response to a call with `MAX_IDS` instances fits on one page.
const PAGE_LEN: i32 = 1000;

/// Describes instances: EC2, or its replacement in a test.
#[async_trait::async_trait]
pub trait Describe: fmt::Debug + Send + Sync {
    /// Returns a page of the instances that a query finds. The page starts after the page that returned `next`.
    ///
    /// # Errors
    ///
    /// Returns an outage. An instance that EC2 does not list is missing from the response, without an error.
    async fn describe(
        &self,
        credentials: &Credentials,
        region: &str,
        query: &Query,
        next: Option<&str>,
    ) -> Result<Page, OutageKind>;
}

/// The instances that a call must return.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Query {
    /// The instances with these IDs, at most 100.
    Ids(Vec<String>),
    /// The instances with all of these tags.
    Tags(BTreeMap<String, String>),
}

/// A page of a response.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Page {
    /// The instances.
    pub instances: Vec<InstanceFacts>,
    /// The token for the next page, if another page exists.
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
        let output = call.send().boxed().await;
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

/// The call uses filters because, with them, an unknown ID does not make the call fail for the other IDs.
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

/// The filter value that matches only this text. In a filter, `*` and `?` are wildcards.
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
    let reported = Reported::of(instance);
    let tags = instance.tags().iter();
    InstanceFacts {
        id: text(instance.instance_id()),
        owner: owner.to_owned(),
        state: text(state.map(InstanceStateName::as_str)),
        zone: text(placement.and_then(|placement| placement.availability_zone())),
        launched: time(instance.launch_time()),
        private_dns_name: name.map(dns_form),
        addresses: reported.addresses.into_iter().collect(),
        dns_names: reported.dns_names.into_iter().collect(),
        first_interface: first_interface(instance),
        root: root(instance),
        tags: tags
            .filter_map(|tag| Some((tag.key()?.to_owned(), text(tag.value()))))
            .collect(),
    }
}

/// The addresses and DNS names that EC2 reports for an instance, without duplicates. An interface's prefixes are for
/// Pods, and are not addresses of the instance.
#[derive(Debug, Default)]
struct Reported {
    addresses: BTreeSet<IpAddr>,
    dns_names: BTreeSet<String>,
}

impl Reported {
    fn of(instance: &Instance) -> Self {
        let mut reported = Self::default();
        reported.add_addresses([
            instance.private_ip_address(),
            instance.ipv6_address(),
            instance.public_ip_address(),
        ]);
        reported.add_names([instance.private_dns_name(), instance.public_dns_name()]);
        for interface in instance.network_interfaces() {
            reported.add_addresses([interface.private_ip_address()]);
            reported.add_names([interface.private_dns_name()]);
            reported.associate(interface.association());
            let six = interface.ipv6_addresses().iter();
            reported.add_addresses(six.map(InstanceIpv6Address::ipv6_address));
            for four in interface.private_ip_addresses() {
                reported.add_addresses([four.private_ip_address()]);
                reported.add_names([four.private_dns_name()]);
                reported.associate(four.association());
            }
        }
        for interface in instance.secondary_interfaces() {
            let four = interface.private_ip_addresses().iter();
            reported.add_addresses(four.map(SecondaryAddress::private_ip_address));
        }
        reported
    }

    /// Adds the addresses with which an interface can be reached from outside its subnet.
    fn associate(&mut self, association: Option<&InstanceNetworkInterfaceAssociation>) {
        if let Some(association) = association {
            self.add_addresses([
                association.public_ip(),
                association.carrier_ip(),
                association.customer_owned_ip(),
            ]);
            self.add_names([association.public_dns_name()]);
        }
    }

    fn add_addresses<'a>(&mut self, texts: impl IntoIterator<Item = Option<&'a str>>) {
        let texts = texts.into_iter().flatten();
        let addresses = texts.filter_map(|text| text.parse::<IpAddr>().ok());
        self.addresses.extend(addresses);
    }

    fn add_names<'a>(&mut self, names: impl IntoIterator<Item = Option<&'a str>>) {
        let names = names.into_iter().flatten().filter(|name| !name.is_empty());
        self.dns_names.extend(names.map(dns_form));
    }
}

fn first_interface(instance: &Instance) -> Option<Attachment> {
    let mut attachments = instance
        .network_interfaces()
        .iter()
        .filter_map(|interface| interface.attachment());
    let first = attachments.find(|attachment| {
        // Interfaces on other network cards can also have the index 0.
        attachment.device_index() == Some(0) && attachment.network_card_index().unwrap_or(0) == 0
    })?;
    Some(Attachment {
        time: time(first.attach_time()),
    })
}

fn root(instance: &Instance) -> RootDevice {
    if instance.root_device_type() == Some(&DeviceType::InstanceStore) {
        return RootDevice::InstanceStore;
    }
    let mut devices = instance.block_device_mappings().iter();
    let root = instance
        .root_device_name()
        .and_then(|name| devices.find(|device| device.device_name() == Some(name)));
    let volume = root.and_then(|device| device.ebs());
    RootDevice::Volume(volume.map(|volume| Attachment {
        time: time(volume.attach_time()),
    }))
}

fn time(time: Option<&DateTime>) -> Option<SystemTime> {
    time.and_then(|time| SystemTime::try_from(*time).ok())
}

#[cfg(test)]
mod tests {
    use aws_sdk_ec2::types::{
        InstanceIpv6Prefix, InstanceNetworkInterface, InstancePrivateIpAddress,
        InstanceSecondaryInterface,
    };

    use super::*;

    fn associated(public_ip: &str, name: &str) -> InstanceNetworkInterfaceAssociation {
        InstanceNetworkInterfaceAssociation::builder()
            .public_ip(public_ip)
            .public_dns_name(name)
            .build()
    }

    /// A secondary address of an interface, which a network plugin can assign to a pod.
    fn secondary(last: u8) -> InstancePrivateIpAddress {
        InstancePrivateIpAddress::builder()
            .private_ip_address(format!("10.0.1.{last}"))
            .private_dns_name(format!("ip-10-0-1-{last}.eu-west-1.compute.internal"))
            .build()
    }

    #[test]
    fn instance_facts_include_the_addresses_and_names_of_all_interfaces() {
        let first = InstanceNetworkInterface::builder()
            .private_ip_address("10.0.0.1")
            .private_dns_name("ip-10-0-0-1.eu-west-1.compute.internal")
            .association(associated("203.0.113.1", "ec2-203-0-113-1.test"))
            .ipv6_addresses(
                InstanceIpv6Address::builder()
                    .ipv6_address("2001:db8::1")
                    .build(),
            )
            .ipv6_addresses(
                InstanceIpv6Address::builder()
                    .ipv6_address("2001:db8::2")
                    .build(),
            )
            .ipv6_prefixes(
                InstanceIpv6Prefix::builder()
                    .ipv6_prefix("2001:db8:1::/80")
                    .build(),
            )
            .set_private_ip_addresses(Some((0..50).map(secondary).collect()));
        let elastic = InstancePrivateIpAddress::builder()
            .private_ip_address("10.0.2.2")
            .association(associated("203.0.113.2", "ec2-203-0-113-2.test"));
        let carrier = InstanceNetworkInterfaceAssociation::builder()
            .carrier_ip("198.51.100.1")
            .customer_owned_ip("198.51.100.2");
        let second = InstanceNetworkInterface::builder()
            .private_ip_address("10.0.2.1")
            .private_dns_name("IP-10-0-2-1.eu-west-1.compute.internal.")
            .association(carrier.build())
            .private_ip_addresses(elastic.build());
        let cluster_network = SecondaryAddress::builder()
            .private_ip_address("10.0.3.1")
            .build();
        let third = InstanceSecondaryInterface::builder().private_ip_addresses(cluster_network);
        // EC2 repeats values of the first interface. These values differ, so that each field must be read.
        let instance = Instance::builder()
            .private_ip_address("10.0.4.1")
            .private_dns_name("ip-10-0-4-1.eu-west-1.compute.internal")
            .public_ip_address("203.0.113.3")
            .public_dns_name("ec2-203-0-113-3.test")
            .ipv6_address("2001:db8::3")
            .network_interfaces(first.build())
            .network_interfaces(second.build())
            .secondary_interfaces(third.build())
            .build();

        let facts = facts("111122223333", &instance);

        let mut addresses: Vec<IpAddr> = (0..50).map(|last| [10, 0, 1, last].into()).collect();
        for other in [
            "10.0.0.1",
            "10.0.2.1",
            "10.0.2.2",
            "10.0.3.1",
            "10.0.4.1",
            "198.51.100.1",
            "198.51.100.2",
            "2001:db8::1",
            "2001:db8::2",
            "2001:db8::3",
            "203.0.113.1",
            "203.0.113.2",
            "203.0.113.3",
        ] {
            addresses.push(other.parse().unwrap());
        }
        addresses.sort_unstable();
        assert_eq!(facts.addresses, addresses);
        let internal = |label: &str| format!("{label}.eu-west-1.compute.internal");
        let mut names: Vec<_> = (0..50)
            .map(|n| internal(&format!("ip-10-0-1-{n}")))
            .collect();
        names.extend(["ip-10-0-0-1", "ip-10-0-2-1", "ip-10-0-4-1"].map(internal));
        names.extend([1, 2, 3].map(|n| format!("ec2-203-0-113-{n}.test")));
        names.sort_unstable();
        assert_eq!(facts.dns_names, names);
    }

    #[test]
    fn an_instance_without_ipv4_has_its_resource_name_and_its_ipv6_address() {
        let name = "i-0123456789abcdef0.eu-west-1.compute.internal";
        let six = InstanceIpv6Address::builder().ipv6_address("2001:db8::1");
        let interface = InstanceNetworkInterface::builder().ipv6_addresses(six.build());
        let instance = Instance::builder()
            .private_dns_name(name)
            .public_dns_name("")
            .network_interfaces(interface.build())
            .build();

        let facts = facts("111122223333", &instance);

        assert_eq!(facts.private_dns_name.as_deref(), Some(name));
        assert_eq!(facts.addresses, ["2001:db8::1".parse::<IpAddr>().unwrap()]);
        assert_eq!(facts.dns_names, [name]);
    }

    #[test]
    fn wildcards_in_a_tag_value_are_escaped() {
        let tags = BTreeMap::from([("a".to_owned(), r"x*y?z\".to_owned())]);

        let [filter] = &filters(&Query::Tags(tags))[..] else {
            panic!("one tag, one filter")
        };

        assert_eq!(filter.name(), Some("tag:a"));
        assert_eq!(filter.values(), [r"x\*y\?z\\"]);
    }
}
