//! Operations that a test performs in an EC2 account.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use base64::prelude::*;
use form_urlencoded::Serializer;

use super::{access_key, http, xml};

/// The version of the EC2 API.
const VERSION: &str = "2016-11-15";

/// Access to EC2 in one region, as the owner of an account. Calls through this value are not counted.
#[derive(Debug, Clone)]
pub struct Ec2 {
    server: SocketAddr,
    account: String,
    region: String,
}

/// An instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Instance {
    /// The ID of the instance.
    pub id: String,
    /// The account that owns the instance.
    pub account: String,
    /// The region of the instance.
    pub region: String,
    /// The availability zone of the instance.
    pub zone: String,
    /// The private DNS name of the instance.
    pub private_dns_name: String,
    /// The private IPv4 address of the instance.
    pub private_ip: String,
    /// The time at which the instance was last launched (RFC 3339).
    pub launched: String,
    /// The name of the instance's state.
    pub state: String,
}

/// A network in one region of an account, with the IDs of its parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Network {
    /// The account that owns the network.
    pub account: String,
    /// The ID of the VPC.
    pub vpc: String,
    /// The ID of the VPC's subnet.
    pub subnet: String,
    /// The subnet's availability zone.
    pub zone: String,
    /// The security group IDs, keyed by group name.
    pub security_groups: BTreeMap<String, String>,
}

impl Ec2 {
    pub(super) fn new(server: SocketAddr, account: &str, region: &str) -> Self {
        Self {
            server,
            account: account.to_owned(),
            region: region.to_owned(),
        }
    }

    /// Launches one instance with these tags.
    #[track_caller]
    pub fn run(&self, tags: &[(&str, &str)]) -> Instance {
        self.run_many(1, tags).remove(0)
    }

    /// Launches instances with these tags, all of which have different private DNS names.
    #[track_caller]
    pub fn run_many(&self, count: usize, tags: &[(&str, &str)]) -> Vec<Instance> {
        loop {
            let instances = self.start_new(count, None, tags);
            let names: BTreeSet<_> = instances.iter().map(|one| &one.private_dns_name).collect();
            if names.len() == count {
                return instances;
            }
            // moto's addresses are random and can repeat. EC2 never assigns an address twice.
            for instance in &instances {
                self.terminate(&instance.id);
            }
        }
    }

    /// Launches one instance with these tags in the network, with an unused address from this network.
    #[track_caller]
    pub fn run_in(&self, network: &Network, tags: &[(&str, &str)]) -> Instance {
        self.start_new(1, Some(network), tags).remove(0)
    }

    #[track_caller]
    fn start_new(
        &self,
        count: usize,
        network: Option<&Network>,
        tags: &[(&str, &str)],
    ) -> Vec<Instance> {
        let count = count.to_string();
        let mut parameters = vec![
            ("ImageId".to_owned(), "ami-12345678"),
            ("MinCount".to_owned(), &*count),
            ("MaxCount".to_owned(), &*count),
        ];
        parameters.extend(network.map(|network| ("SubnetId".to_owned(), &*network.subnet)));
        let specification = "TagSpecification.1";
        if !tags.is_empty() {
            parameters.push((format!("{specification}.ResourceType"), "instance"));
        }
        for (number, (key, value)) in (1..).zip(tags) {
            parameters.push((format!("{specification}.Tag.{number}.Key"), key));
            parameters.push((format!("{specification}.Tag.{number}.Value"), value));
        }
        let started = self.call("RunInstances", &parameters);
        let started = xml::instances(&started);
        // The response to `RunInstances` contains pending instances. When EC2 describes the instances, they are
        // running.
        let ids: Vec<_> = started
            .iter()
            .map(|item| field(item, "", "instanceId"))
            .collect();
        self.describe(&ids)
    }

    /// The current state of an instance.
    #[track_caller]
    pub fn instance(&self, id: &str) -> Instance {
        self.describe(&[id.to_owned()]).remove(0)
    }

    /// The user data of an instance. Empty if the instance has no user data.
    ///
    /// # Panics
    ///
    /// Panics if the user data are not text.
    #[track_caller]
    pub fn user_data(&self, id: &str) -> String {
        let attribute = ("Attribute".to_owned(), "userData");
        let of = ("InstanceId".to_owned(), id);
        let answer = self.call("DescribeInstanceAttribute", &[of, attribute]);
        let data = BASE64_STANDARD.decode(field(&answer, "<userData>", "value"));
        String::from_utf8(data.expect("EC2 encodes them")).expect("they are a text")
    }

    /// Creates a network with one subnet for all of its addresses, and a security group for each of these names.
    #[track_caller]
    pub fn create_network(&self, cidr: &str, groups: &[&str]) -> Network {
        let made = |action, parameters: &[(&str, &str)], element| {
            let parameters = parameters.iter();
            let parameters: Vec<_> = parameters
                .map(|(name, value)| ((*name).to_owned(), *value))
                .collect();
            let answer = self.call(action, &parameters);
            let id = field(&answer, "", element);
            assert!(!id.is_empty(), "{action}: {answer}");
            id
        };
        let vpc = made("CreateVpc", &[("CidrBlock", cidr)], "vpcId");
        let zone = format!("{}a", self.region);
        let subnet = made(
            "CreateSubnet",
            &[
                ("VpcId", &vpc),
                ("CidrBlock", cidr),
                ("AvailabilityZone", &zone),
            ],
            "subnetId",
        );
        let groups = groups.iter().map(|name| {
            let parameters = [
                ("GroupName", *name),
                ("GroupDescription", *name),
                ("VpcId", &vpc),
            ];
            let id = made("CreateSecurityGroup", &parameters, "groupId");
            ((*name).to_owned(), id)
        });
        Network {
            account: self.account.clone(),
            security_groups: groups.collect(),
            vpc,
            subnet,
            zone,
        }
    }

    /// Stops an instance.
    #[track_caller]
    pub fn stop(&self, id: &str) {
        self.call("StopInstances", &[("InstanceId.1".to_owned(), id)]);
    }

    /// Starts an instance that was stopped.
    #[track_caller]
    pub fn start(&self, id: &str) {
        self.call("StartInstances", &[("InstanceId.1".to_owned(), id)]);
    }

    /// Terminates an instance.
    #[track_caller]
    pub fn terminate(&self, id: &str) {
        self.call("TerminateInstances", &[("InstanceId.1".to_owned(), id)]);
    }

    /// Sets a tag.
    #[track_caller]
    pub fn tag(&self, id: &str, key: &str, value: &str) {
        self.call(
            "CreateTags",
            &[
                ("ResourceId.1".to_owned(), id),
                ("Tag.1.Key".to_owned(), key),
                ("Tag.1.Value".to_owned(), value),
            ],
        );
    }

    /// Removes a tag.
    #[track_caller]
    pub fn untag(&self, id: &str, key: &str) {
        self.call(
            "DeleteTags",
            &[
                ("ResourceId.1".to_owned(), id),
                ("Tag.1.Key".to_owned(), key),
            ],
        );
    }

    /// Makes any call to EC2's query interface, and returns the XML of the response.
    #[track_caller]
    pub fn call(&self, action: &str, parameters: &[(String, &str)]) -> String {
        let mut form = Serializer::new(String::new());
        form.append_pair("Action", action);
        form.append_pair("Version", VERSION);
        form.extend_pairs(parameters);
        let (key, _) = access_key(&self.account);
        let scope = format!("{key}/20260101/{}/ec2/aws4_request", self.region);
        let authorization =
            format!("AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders=host, Signature=0");
        let headers = [
            ("authorization", &*authorization),
            (super::front::ACCOUNT_HEADER, &self.account),
        ];
        let answer = http::post(self.server, &headers, form.finish().as_bytes());
        let answer =
            answer.unwrap_or_else(|error| panic!("moto does not answer {action}: {error}"));
        assert_eq!(answer.status, 200, "{action}: {}", answer.body);
        answer.body
    }

    #[track_caller]
    fn describe(&self, ids: &[String]) -> Vec<Instance> {
        let parameters: Vec<_> = (1..)
            .zip(ids)
            .map(|(number, id): (usize, _)| (format!("InstanceId.{number}"), &**id))
            .collect();
        let answer = self.call("DescribeInstances", &parameters);
        let instances: Vec<_> = xml::instances(&answer)
            .into_iter()
            .map(|item| Instance {
                id: field(item, "", "instanceId"),
                account: self.account.clone(),
                region: self.region.clone(),
                zone: field(item, "<placement>", "availabilityZone"),
                private_dns_name: field(item, "</instanceState>", "privateDnsName"),
                private_ip: field(item, "</instanceState>", "privateIpAddress"),
                launched: field(item, "", "launchTime"),
                state: field(item, "<instanceState>", "name"),
            })
            .collect();
        assert_eq!(instances.len(), ids.len(), "{answer}");
        instances
    }
}

fn field(item: &str, after: &str, element: &str) -> String {
    xml::text(item, after, element)
        .unwrap_or_default()
        .to_owned()
}
