//! The account and region of an instance, from its provider ID.

use kubelet_attestation::names::ProviderId;

use crate::document::{is_instance, is_zone_of};
use crate::partition;
use crate::policy::AwsPolicy;

/// An instance, and the region in which it is looked up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct InstancePlace<'a> {
    pub(super) region: &'a str,
    pub(super) zone: &'a str,
    pub(super) instance: &'a str,
}

impl<'a> InstancePlace<'a> {
    /// Parses `aws:///<zone>/<instance>`, the form that Cluster API Provider AWS and the cloud provider use. `None` if
    /// it is not an AWS ID, or if its region is unknown.
    pub(super) fn of(provider_id: &'a ProviderId) -> Option<Self> {
        let path = provider_id.as_str().strip_prefix("aws:///")?;
        let (zone, instance) = path.split_once('/')?;
        let region = region_of(zone)?;
        is_instance(instance).then_some(Self {
            region,
            zone,
            instance,
        })
    }

    /// Does the same as [`of`](Self::of), for a cluster with this policy. Also returns `None` if the policy does not
    /// accept the region.
    pub(super) fn in_cluster(provider_id: &'a ProviderId, policy: &AwsPolicy) -> Option<Self> {
        Self::of(provider_id).filter(|place| policy.accepts_region(place.region))
    }
}

/// The region of a zone: a region's name ends with its number, and a zone's name begins with its region's name.
fn region_of(zone: &str) -> Option<&str> {
    let number = zone.find(|char: char| char.is_ascii_digit())?;
    let len = zone
        .get(number..)?
        .find(|char: char| !char.is_ascii_digit())?;
    let region = zone.get(..number + len)?;
    partition::of_region(region)?;
    is_zone_of(zone, region).then_some(region)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(provider_id: &str) -> Option<(String, String)> {
        let provider_id = ProviderId::parse(provider_id).unwrap();
        let place = InstancePlace::of(&provider_id)?;
        Some((place.region.to_owned(), place.instance.to_owned()))
    }

    #[test]
    fn every_zone_format_belongs_to_its_region() {
        for (zone, region) in [
            ("eu-west-1a", "eu-west-1"),
            ("us-gov-west-1b", "us-gov-west-1"),
            ("cn-north-1a", "cn-north-1"),
            ("eusc-de-east-1a", "eusc-de-east-1"),
            ("us-west-2-lax-1a", "us-west-2"),
            ("us-east-1-wl1-bos-wlz-1", "us-east-1"),
        ] {
            let found = place(&format!("aws:///{zone}/i-0123456789abcdef0"));

            let expected = (region.to_owned(), "i-0123456789abcdef0".to_owned());
            assert_eq!(found, Some(expected), "{zone}");
        }
    }

    #[test]
    fn a_provider_id_that_is_not_an_ec2_instance_has_no_region() {
        for provider_id in [
            "tpm://0123",
            "metal:///rack-1/7",
            "gce:///eu-west-1a/i-0123456789abcdef0",
            "aws://eu-west-1a/i-0123456789abcdef0",
            "aws:////i-0123456789abcdef0",
            "aws:///i-0123456789abcdef0",
            "aws:///eu-west-1/i-0123456789abcdef0",
            "aws:///eu-west-1ab/i-0123456789abcdef0",
            "aws:///eu-west-1a/i-",
            "aws:///eu-west-1a/i-0123456789abcdef0/1",
            "aws:///eu-west-1a/vol-0123456789abcdef0",
            "aws:///west-1a/i-0123456789abcdef0",
            "aws:///xx-west-1a/i-0123456789abcdef0",
            "aws:///eu-west-1.example.org/i-0123456789abcdef0",
        ] {
            assert_eq!(place(provider_id), None, "{provider_id}");
        }
    }
}
