//! The names that an instance's node can have.
//!
//! The controller issues certificates only for the names that EC2 reports for the instance: its ID and its private DNS
//! name. This module detects any other name before the node sends a request.

use kubelet_attestation::names::NodeName;
use kubelet_authenticator::failure::{Code, Failure};
use kubelet_authenticator::imds::Text;
use kubelet_authenticator::process;

use crate::identity::Identity;
use crate::settings::AwsNodeName;

/// A cloud-init template with the result of [`private_dns_name`].
///
/// The template does not contain single quotes. YAML doubles single quotes in a string, and cloud-init evaluates the
/// template before it reads the YAML.
pub(crate) const TEMPLATE: &str = concat!(
    r#"{{ ds.meta_data.local_hostname.split(".")[0] }}."#,
    r#"{{ "ec2" if v1.region == "us-east-1" else v1.region ~ ".compute" }}.internal"#,
);

/// Checks `name`. `local_hostname` reads the value in the metadata, which can contain several names. This function
/// calls `local_hostname` only if the result depends on the value.
pub(crate) fn check(
    policy: AwsNodeName,
    name: &NodeName,
    identity: &Identity,
    local_hostname: impl FnOnce() -> Result<Option<Text>, Failure>,
) -> Result<(), Failure> {
    let id = identity.instance_id.as_str();
    let accepts_id = policy != AwsNodeName::LocalHostname;
    if accepts_id && name.as_str() == id {
        return Ok(());
    }
    let local = match policy {
        AwsNodeName::InstanceId => None,
        AwsNodeName::Hostname | AwsNodeName::LocalHostname => local_hostname()?,
    };
    let local = local.as_ref().map_or("", |local| local.as_str());
    let private = private_dns_name(local, &identity.region);
    if private.as_ref() == Some(name) {
        return Ok(());
    }
    let private = private.as_ref().map(NodeName::as_str);
    // AWS's cloud provider interprets every name that begins with `i-` as an instance ID.
    let has_resource_name = private.is_some_and(|private| private.starts_with(id));
    let id = accepts_id.then_some(id);
    let expected = if has_resource_name {
        [id, private]
    } else {
        [private, id]
    };
    let expected: Vec<_> = expected.into_iter().flatten().collect();
    let first = expected.first().copied().unwrap_or("<name>");
    let is_of_vpc = own_names(local).any(|own| own.eq_ignore_ascii_case(name.as_str()));
    let why = if is_of_vpc && private.is_some() {
        "EC2 does not report names in the domain of the VPC's DHCP options: "
    } else {
        ""
    };
    Err(Failure::new(
        Code::NodeName,
        format!(
            "the node name is {name}, but EC2 expects {}",
            expected.join(" or ")
        ),
        format!(
            "{why}start the kubelet with --hostname-override={first} (in kubeadm: nodeRegistration.name); \
             if the node was enrolled with another name, also run: {} reset --yes",
            process::command()
        ),
    ))
}

/// The instance's private DNS name in EC2, derived from the names in the metadata. The names in the metadata have the
/// domain from the VPC's DHCP options, but the private DNS name always has the domain of the region.
///
/// Source: the VPC user guide, "DNS attributes for your VPC".
pub(crate) fn private_dns_name(local_hostname: &str, region: &str) -> Option<NodeName> {
    let label = own_names(local_hostname).next()?.split('.').next()?;
    let label = label.to_ascii_lowercase();
    let domain = if region == "us-east-1" {
        "ec2.internal".to_owned()
    } else {
        format!("{region}.compute.internal")
    };
    NodeName::parse(&format!("{label}.{domain}")).ok()
}

/// The names in the metadata. The domain in the DHCP options can end with a dot.
fn own_names(local_hostname: &str) -> impl Iterator<Item = &str> {
    let names = local_hostname.split_whitespace();
    names.map(|name| name.trim_end_matches('.'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::tests::identity;

    const ID: &str = "i-0123456789abcdef0";
    const PRIVATE: &str = "ip-10-0-0-1.eu-west-1.compute.internal";
    const RESOURCE: &str = "i-0123456789abcdef0.eu-west-1.compute.internal";

    /// For each kind of network, the metadata's `local-hostname` and EC2's private DNS name.
    const NETWORKS: [(&str, &str); 11] = [
        (PRIVATE, PRIVATE),
        ("IP-10-0-0-1.EU-WEST-1.compute.internal", PRIVATE),
        // The DHCP options of the VPC contain another domain, several domains, or a domain that ends with a dot.
        ("ip-10-0-0-1.corp.test", PRIVATE),
        ("ip-10-0-0-1.corp.test.", PRIVATE),
        ("ip-10-0-0-1.corp.test ip-10-0-0-1.other.test", PRIVATE),
        ("ip-10-0-0-1.corp.test. other.test.", PRIVATE),
        ("ip-10-0-0-1.eu-west-1.compute.internal.", PRIVATE),
        // The DHCP options contain an empty domain.
        ("ip-10-0-0-1", PRIVATE),
        ("ip-10-0-0-1.", PRIVATE),
        // The subnet has resource names, or does not have IPv4.
        (RESOURCE, RESOURCE),
        ("i-0123456789abcdef0.corp.test", RESOURCE),
    ];

    fn checked(policy: AwsNodeName, name: &str, local: Option<&str>) -> Result<(), Failure> {
        let local = || Ok(local.map(|local| Text::new(local.to_owned())));
        check(policy, &NodeName::parse(name).unwrap(), &identity(), local)
    }

    #[test]
    fn the_id_and_the_private_dns_name_are_accepted_in_every_network() {
        for (local, private) in NETWORKS {
            for (policy, name, is_accepted) in [
                (AwsNodeName::Hostname, private, true),
                (AwsNodeName::Hostname, ID, true),
                (AwsNodeName::LocalHostname, private, true),
                (AwsNodeName::LocalHostname, ID, false),
                (AwsNodeName::InstanceId, private, false),
                (AwsNodeName::InstanceId, ID, true),
            ] {
                let checked = checked(policy, name, Some(local));
                assert_eq!(checked.is_ok(), is_accepted, "{policy:?} {name} of {local}");
            }
        }
        assert!(checked(AwsNodeName::Hostname, ID, None).is_ok());
    }

    #[test]
    fn a_node_name_that_ec2_does_not_report_is_refused() {
        for (name, local) in [
            ("ip-10-0-0-1", Some(PRIVATE)),
            ("ip-10-0-0-2.eu-west-1.compute.internal", Some(PRIVATE)),
            ("ip-10-0-0-1.us-east-1.compute.internal", Some(PRIVATE)),
            ("ip-10-0-0-1.ec2.internal", Some(PRIVATE)),
            ("i-0123456789abcdef1", Some(PRIVATE)),
            ("ip-10-0-0-1.corp.test", Some(PRIVATE)),
            ("ip-10-0-0-1.corp.test", Some("ip-10-0-0-1.corp.test")),
            ("ip-10-0-0-1.corp.test", Some("ip-10-0-0-1.corp.test.")),
            ("other.test", Some("ip-10-0-0-1.corp.test other.test")),
            ("ip-10-0-0-1", Some("ip-10-0-0-1")),
            (PRIVATE, Some(RESOURCE)),
            (RESOURCE, Some(PRIVATE)),
            (PRIVATE, None),
            (PRIVATE, Some("")),
        ] {
            for policy in [AwsNodeName::Hostname, AwsNodeName::LocalHostname] {
                let error = checked(policy, name, local).unwrap_err();
                assert!(error.to_string().contains(name), "{error}");
                assert_eq!(error.code(), Code::NodeName);
            }
        }
    }

    #[test]
    fn the_remedy_contains_an_accepted_name() {
        for (name, local, private) in NETWORKS
            .into_iter()
            .flat_map(|(local, private)| [("n1", local, private), ("i-0", local, private)])
        {
            let error = checked(AwsNodeName::Hostname, name, Some(local)).unwrap_err();

            let first = if private == RESOURCE { ID } else { private };
            let option = format!("--hostname-override={first} ");
            assert!(error.remedy().starts_with("start the kubelet "), "{local}");
            assert!(error.remedy().contains(&option), "{}", error.remedy());
        }
        let error = checked(AwsNodeName::Hostname, "n1", Some(PRIVATE)).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("the node name is n1, but EC2 expects {PRIVATE} or {ID}")
        );
        let dhcp = ("ip-10-0-0-1.corp.test", Some("ip-10-0-0-1.corp.test."));
        let error = checked(AwsNodeName::Hostname, dhcp.0, dhcp.1).unwrap_err();
        let why = format!(
            "EC2 does not report names in the domain of the VPC's DHCP options: start the kubelet \
             with --hostname-override={PRIVATE} "
        );
        assert!(error.remedy().starts_with(&why), "{}", error.remedy());
    }

    #[test]
    fn the_private_dns_domain_follows_the_region() {
        for (region, domain) in [
            ("us-east-1", "ec2.internal"),
            ("us-east-2", "us-east-2.compute.internal"),
            ("us-gov-east-1", "us-gov-east-1.compute.internal"),
            ("cn-north-1", "cn-north-1.compute.internal"),
        ] {
            let name = private_dns_name("ip-10-0-0-1.corp.test", region).unwrap();
            assert_eq!(name.as_str(), format!("ip-10-0-0-1.{domain}"));
        }
        for nothing in ["", " ", ".", ".corp.test", "-.corp.test"] {
            assert_eq!(private_dns_name(nothing, "eu-west-1"), None, "{nothing:?}");
        }
    }

    #[test]
    fn the_local_hostname_is_read_only_if_it_is_needed() {
        let needs = |policy, name| {
            let mut asked = false;
            let local = || {
                asked = true;
                Ok(None)
            };
            drop(check(
                policy,
                &NodeName::parse(name).unwrap(),
                &identity(),
                local,
            ));
            asked
        };

        assert!(needs(AwsNodeName::Hostname, "n1"));
        assert!(!needs(AwsNodeName::Hostname, ID));
        assert!(needs(AwsNodeName::LocalHostname, ID));
        assert!(!needs(AwsNodeName::InstanceId, "n1"));
    }
}
