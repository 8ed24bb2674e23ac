//! The data that the metadata service has about its instance.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use serde_json::json;

use super::network::Network;
use crate::clock::since_epoch;
use crate::sts::Credentials;

/// The approximate lifetime of EC2's credentials.
const CREDENTIALS_LIFETIME: Duration = Duration::from_hours(6);

/// The paths of the values, excluding the credentials of a role.
const PATHS: [&str; 11] = [
    "dynamic/instance-identity/document",
    "dynamic/instance-identity/rsa2048",
    "meta-data/hostname",
    "meta-data/instance-id",
    "meta-data/ipv6",
    "meta-data/local-hostname",
    "meta-data/local-ipv4",
    "meta-data/placement/availability-zone",
    "meta-data/placement/region",
    "meta-data/services/domain",
    "meta-data/services/partition",
];

/// An instance, as described by its metadata service.
#[derive(Debug, Clone)]
pub struct Instance {
    /// `meta-data/instance-id`.
    pub instance_id: String,
    /// `meta-data/placement/availability-zone`.
    pub availability_zone: String,
    /// `meta-data/placement/region`.
    pub region: String,
    /// `meta-data/local-hostname`. It can contain several names separated by spaces.
    pub local_hostname: String,
    /// `meta-data/local-ipv4`; 404 if empty.
    pub local_ipv4: String,
    /// `meta-data/ipv6`; 404 if empty.
    pub ipv6: String,
    /// `meta-data/services/partition`.
    pub partition: String,
    /// `meta-data/services/domain`.
    pub domain: String,
    /// `dynamic/instance-identity/document`.
    pub document: Vec<u8>,
    /// `dynamic/instance-identity/rsa2048`.
    pub rsa2048: String,
    /// The credentials of the instance identity role. If it is `None`, the response is 404.
    pub identity_credentials: Option<Credentials>,
    /// The instance profile. If it is `None`, the response is 404.
    pub profile: Option<Profile>,
}

/// The role in an instance profile.
#[derive(Debug, Clone)]
pub struct Profile {
    /// The role's name.
    pub role: String,
    /// The credentials for the role's session.
    pub credentials: Credentials,
}

impl Instance {
    /// Creates an instance in the partition `aws` whose name is derived from its address, with an unsigned document and
    /// no credentials.
    pub fn new(region: &str, availability_zone: &str, instance_id: &str) -> Self {
        let local_ipv4 = "10.0.0.1";
        let network = Network::AddressNames;
        Self {
            instance_id: instance_id.to_owned(),
            availability_zone: availability_zone.to_owned(),
            region: region.to_owned(),
            local_hostname: network.local_hostname(region, instance_id, local_ipv4),
            local_ipv4: local_ipv4.to_owned(),
            ipv6: String::new(),
            partition: "aws".to_owned(),
            domain: "amazonaws.com".to_owned(),
            document: b"{}".to_vec(),
            rsa2048: String::new(),
            identity_credentials: None,
            profile: None,
        }
    }

    /// Moves the instance to this network, with the names and addresses that AWS assigns in such a network.
    pub fn join_network(&mut self, network: Network) {
        let (region, id) = (&self.region, &self.instance_id);
        self.local_hostname = network.local_hostname(region, id, &self.local_ipv4);
        if network == Network::Ipv6Only {
            self.local_ipv4.clear();
            "2001:db8::1".clone_into(&mut self.ipv6);
        }
    }

    /// The value at this path below `/latest/`.
    pub(super) fn at(&self, path: &str) -> Option<Vec<u8>> {
        let text = |text: &str| Some(text.as_bytes().to_vec());
        let known = |text: &str| Some(text.as_bytes().to_vec()).filter(|text| !text.is_empty());
        match path {
            "dynamic/instance-identity/document" => Some(self.document.clone()),
            "dynamic/instance-identity/rsa2048" => known(&self.rsa2048),
            "meta-data/instance-id" => text(&self.instance_id),
            "meta-data/placement/availability-zone" => text(&self.availability_zone),
            "meta-data/placement/region" => text(&self.region),
            "meta-data/local-hostname" | "meta-data/hostname" => text(&self.local_hostname),
            "meta-data/ipv6" => known(&self.ipv6),
            "meta-data/local-ipv4" => known(&self.local_ipv4),
            "meta-data/services/partition" => text(&self.partition),
            "meta-data/services/domain" => text(&self.domain),
            "meta-data/identity-credentials/ec2/security-credentials/ec2-instance" => {
                self.identity_credentials.as_ref().map(credentials)
            }
            "meta-data/iam/security-credentials" | "meta-data/iam/security-credentials/" => {
                text(&self.profile.as_ref()?.role)
            }
            _ => {
                let profile = self.profile.as_ref()?;
                let role = path.strip_prefix("meta-data/iam/security-credentials/")?;
                (role == profile.role).then(|| credentials(&profile.credentials))
            }
        }
    }

    /// The names in this directory below `/latest/`, one on each line. The name of a directory ends with a slash.
    pub(super) fn list(&self, directory: &str) -> Option<Vec<u8>> {
        let directory = directory.trim_end_matches('/');
        let paths = PATHS.into_iter().filter(|path| self.at(path).is_some());
        let below = paths.filter_map(|path| path.strip_prefix(directory)?.strip_prefix('/'));
        let names: BTreeSet<String> = below
            .map(|rest| match rest.split_once('/') {
                Some((name, _)) => format!("{name}/"),
                None => rest.to_owned(),
            })
            .collect();
        let names: Vec<String> = names.into_iter().collect();
        (!names.is_empty()).then(|| names.join("\n").into_bytes())
    }
}

fn credentials(credentials: &Credentials) -> Vec<u8> {
    let updated = since_epoch(credentials.expiration).saturating_sub(CREDENTIALS_LIFETIME);
    let answer = json!({
        "Code": "Success",
        "LastUpdated": timestamp(SystemTime::UNIX_EPOCH + updated),
        "Type": "AWS-HMAC",
        "AccessKeyId": credentials.access_key_id,
        "SecretAccessKey": credentials.secret_access_key,
        "Token": credentials.session_token,
        "Expiration": timestamp(credentials.expiration),
    });
    serde_json::to_vec_pretty(&answer).expect("an object of strings")
}

fn timestamp(time: SystemTime) -> String {
    let time = jiff::Timestamp::try_from(time).expect("a time in the supported range");
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
