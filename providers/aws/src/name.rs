//! Checks that the node has a name that the cloud gives its instance.
//!
//! The controller issues certificates only for EC2's names of the instance. This finds any other
//! name before the node sends a request.

use kubelet_attestation::names::NodeName;
use kubelet_authenticator::failure::{Code, Failure};
use kubelet_authenticator::imds::Text;

use crate::identity::Identity;
use crate::settings::AwsNodeName;

/// Checks `name`. `local_hostname` reads the metadata's, which may contain several names. It is not
/// read if the name does not depend on it.
pub(crate) fn check(
    policy: AwsNodeName,
    name: &NodeName,
    identity: &Identity,
    local_hostname: impl FnOnce() -> Result<Option<Text>, Failure>,
) -> Result<(), Failure> {
    let mut expected = Vec::new();
    if policy != AwsNodeName::LocalHostname {
        expected.push(identity.instance_id.clone());
    }
    let is_expected = |expected: &[String]| expected.iter().any(|it| it == name.as_str());
    if policy != AwsNodeName::InstanceId && !is_expected(&expected) {
        let names = local_hostname()?;
        let first = names
            .as_ref()
            .and_then(|names| names.split_whitespace().next());
        if let Some(first) = first.map(str::to_ascii_lowercase) {
            let private = private_dns_name(&first, &identity.region);
            if policy == AwsNodeName::Hostname && private != first {
                expected.insert(0, private);
            }
            expected.insert(0, first);
        }
    }
    if is_expected(&expected) {
        return Ok(());
    }
    let first = expected.first().map_or("<name>", String::as_str);
    Err(Failure::new(
        Code::NodeName,
        format!(
            "the node is called {name}, and the cloud calls its instance {}",
            expected.join(" or ")
        ),
        format!(
            "give the kubelet --hostname-override={first} (in kubeadm: nodeRegistration.name); if \
             the node was enrolled under another name, run `reset`"
        ),
    ))
}

/// EC2's private DNS name of an instance, for a VPC that gives its hosts another domain.
///
/// From the VPC user guide, "DNS attributes for your VPC".
fn private_dns_name(local_hostname: &str, region: &str) -> String {
    let label = local_hostname.split('.').next().unwrap_or_default();
    if region == "us-east-1" {
        format!("{label}.ec2.internal")
    } else {
        format!("{label}.{region}.compute.internal")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::tests::identity;

    const ID: &str = "i-0123456789abcdef0";
    const PRIVATE: &str = "ip-10-0-0-1.eu-west-1.compute.internal";

    fn checked(policy: AwsNodeName, name: &str, local: Option<&str>) -> Result<(), Failure> {
        let local = || Ok(local.map(|local| Text::new(local.to_owned())));
        check(policy, &NodeName::parse(name).unwrap(), &identity(), local)
    }

    #[test]
    fn by_host_name_any_name_that_the_cloud_gives_will_do() {
        let several = format!("{PRIVATE} ip-10-0-0-1.other.test");
        for (name, local) in [
            (PRIVATE, PRIVATE),
            (PRIVATE, &several),
            (ID, PRIVATE),
            ("ip-10-0-0-1.corp.test", "IP-10-0-0-1.corp.test"),
            (PRIVATE, "ip-10-0-0-1.corp.test"),
        ] {
            let checked = checked(AwsNodeName::Hostname, name, Some(local));
            assert!(checked.is_ok(), "{name} of {local}");
        }
        assert!(checked(AwsNodeName::Hostname, ID, None).is_ok());
    }

    #[test]
    fn by_host_name_another_name_is_refused() {
        let several = format!("{PRIVATE} other.test");
        for (name, local) in [
            ("ip-10-0-0-1", Some(PRIVATE)),
            ("ip-10-0-0-2.eu-west-1.compute.internal", Some(PRIVATE)),
            ("i-0123456789abcdef1", Some(PRIVATE)),
            ("other.test", Some(&several)),
            (PRIVATE, None),
        ] {
            let error = checked(AwsNodeName::Hostname, name, local).unwrap_err();
            assert!(error.to_string().contains(name), "{error}");
        }
        let error = checked(AwsNodeName::Hostname, "n1", Some(PRIVATE)).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("the node is called n1, and the cloud calls its instance {PRIVATE} or {ID}")
        );
        assert!(
            error
                .remedy()
                .contains(&format!("--hostname-override={PRIVATE}"))
        );
    }

    #[test]
    fn by_another_policy_one_name_will_do() {
        for (policy, name, good) in [
            (AwsNodeName::LocalHostname, "ip-10-0-0-1.corp.test", true),
            (AwsNodeName::LocalHostname, PRIVATE, false),
            (AwsNodeName::LocalHostname, ID, false),
            (AwsNodeName::InstanceId, ID, true),
            (AwsNodeName::InstanceId, "ip-10-0-0-1.corp.test", false),
        ] {
            let checked = checked(policy, name, Some("ip-10-0-0-1.corp.test"));
            assert_eq!(checked.is_ok(), good, "{policy:?} {name}");
        }
    }

    #[test]
    fn the_metadata_is_asked_for_a_name_only_where_it_matters() {
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
