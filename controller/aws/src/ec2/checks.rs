//! Checks that an instance matches its document or its provider ID, and belongs to this cluster. The checks work
//! offline, except for the lookup of the cluster's region.
//!
//! EC2 is eventually consistent. If a fact about a young instance is missing, EC2 might still report it later. If a
//! fact does not match, it is a contradiction regardless of the instance's age.

use std::time::{Duration, SystemTime};

use kubelet_attestation::ensure;
use kubelet_attestation::names::NodeName;
use node_attestation_core::crd::AwsNodeName;
use node_attestation_core::identifiers::dns_form;
use node_attestation_core::refusal::{Deferral, Refusal};
use node_attestation_core::time::{age, apart};

use super::{Attachment, InstanceFacts, RootDevice};
use crate::credentials::CredentialsSource;
use crate::denial::AwsDenial;
use crate::document::VerifiedDocument;
use crate::policy::AwsPolicy;

/// The time after a launch for which EC2 can omit parts of an instance. EC2 usually shows a change within seconds.
/// According to its documentation, this can take minutes ("Eventual consistency in the Amazon EC2 API").
const YOUNG: Duration = Duration::from_mins(5);

/// The maximum difference between the launch time in the document and in EC2's description. Both times come from EC2,
/// and differ by seconds.
const LAUNCH_LEEWAY: Duration = Duration::from_mins(1);

/// The maximum time between attaching the first interface and attaching the root volume during a launch. The time is
/// usually a few seconds.
const ATTACHED_TOGETHER: Duration = Duration::from_mins(1);

/// The key prefix of Cluster API's ownership tag, which precedes the Cluster's name.
const OWNERSHIP_TAG: &str = "sigs.k8s.io/cluster-api-provider-aws/cluster/";

/// The value of the ownership tag.
const OWNED: &str = "owned";

/// The result for an instance that passes all checks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checked {
    /// The name of the instance's Node.
    pub node_name: NodeName,
    /// The reason to deny a first join, if any. The instance can still renew and enroll again, because a root volume
    /// can be replaced while an instance exists.
    pub first_claim_only: Option<AwsDenial>,
}

/// The expected properties of an instance. They come from its signed document or, for a machine that attests with its
/// TPM, from its provider ID.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Expected<'a> {
    pub(super) instance: &'a str,
    pub(super) account: &'a str,
    pub(super) zone: &'a str,
    /// The time of its last launch.
    pub(super) launched: SystemTime,
}

impl<'a> From<&'a VerifiedDocument> for Expected<'a> {
    fn from(document: &'a VerifiedDocument) -> Self {
        Self {
            instance: &document.instance,
            account: &document.account,
            zone: &document.availability_zone,
            launched: document.pending_time,
        }
    }
}

/// Checks that the cluster can have instances in this region, according to its settings and its own region.
///
/// # Errors
///
/// Returns [`AwsDenial::RegionNotAllowed`], or a [`Deferral`] if the region of the cluster is unknown.
pub(crate) fn check_region(
    source: &dyn CredentialsSource,
    policy: &AwsPolicy,
    region: &str,
) -> Result<(), Refusal> {
    let denied = || AwsDenial::RegionNotAllowed(region.to_owned()).into();
    ensure!(policy.accepts_region(region), denied());
    let accepted = source.may_be_in(&policy.tenant, region);
    ensure!(accepted.map_err(Deferral::VerifierUnavailable)?, denied());
    Ok(())
}

/// Returns the refusal if EC2 does not list the document's instance.
pub(crate) fn absent(document: &VerifiedDocument, now: SystemTime) -> Refusal {
    let denial = AwsDenial::InstanceNotFound(document.instance.clone());
    not_there(document.into(), now, denial)
}

/// Compares EC2's description of an instance with its document and with the cluster's policy.
///
/// # Errors
///
/// Returns an [`AwsDenial`] for a contradiction, and a [`Deferral`] for a missing fact about a young instance.
pub fn check(
    facts: &InstanceFacts,
    document: &VerifiedDocument,
    policy: &AwsPolicy,
    now: SystemTime,
) -> Result<Checked, Refusal> {
    check_whole(facts, document.into(), policy, now)
}

/// Does the same as [`check`], for an instance with the expected properties.
///
/// # Errors
///
/// The same errors as for [`check`].
pub(super) fn check_whole(
    facts: &InstanceFacts,
    expected: Expected<'_>,
    policy: &AwsPolicy,
    now: SystemTime,
) -> Result<Checked, Refusal> {
    let subject = Subject::checked(facts, expected, policy, now)?;
    Ok(Checked {
        node_name: subject.node_name(policy.settings.node_name)?,
        first_claim_only: if policy.settings.root_volume_check {
            subject.moved()?
        } else {
            None
        },
    })
}

/// Does the same as [`check`], for an instance that attests with its TPM. The name and the root volume are not checked,
/// because the quote covers the boot.
///
/// # Errors
///
/// The same errors as for [`check`].
pub(super) fn check_expected(
    facts: &InstanceFacts,
    expected: Expected<'_>,
    policy: &AwsPolicy,
    now: SystemTime,
) -> Result<(), Refusal> {
    Subject::checked(facts, expected, policy, now).map(drop)
}

/// The name of an instance's Node. `None` if the instance has no such name.
pub(crate) fn node_name(facts: &InstanceFacts, policy: AwsNodeName) -> Option<NodeName> {
    let name = match policy {
        AwsNodeName::PrivateDnsName => dns_form(facts.private_dns_name.as_deref()?),
        AwsNodeName::InstanceId => facts.id.clone(),
    };
    NodeName::parse(&name).ok()
}

struct Subject<'a> {
    facts: &'a InstanceFacts,
    expected: Expected<'a>,
    now: SystemTime,
}

impl<'a> Subject<'a> {
    /// Checks that an instance has the expected properties, and can belong to the cluster.
    fn checked(
        facts: &'a InstanceFacts,
        expected: Expected<'a>,
        policy: &AwsPolicy,
        now: SystemTime,
    ) -> Result<Self, Refusal> {
        let subject = Self {
            facts,
            expected,
            now,
        };
        subject.is_running()?;
        subject.is_as_documented()?;
        subject.is_of_this_launch()?;
        subject.has_first_interface()?;
        subject.is_of_cluster(policy)?;
        Ok(subject)
    }

    fn instance(&self) -> String {
        self.expected.instance.to_owned()
    }

    /// Returns the denial, or a deferral if the instance is young.
    fn lacks(&self, denial: AwsDenial) -> Refusal {
        not_there(self.expected, self.now, denial)
    }

    fn is_running(&self) -> Result<(), Refusal> {
        if self.facts.is_running() {
            return Ok(());
        }
        let denial = AwsDenial::InstanceNotRunning {
            instance: self.instance(),
            state: self.facts.state.clone(),
        };
        // The instance was started again, but EC2 does not show this yet. A terminated instance cannot be started
        // again.
        let pending_time = self.expected.launched;
        let is_before = |launched| launched + LAUNCH_LEEWAY < pending_time;
        let can_be_outdated = match &*self.facts.state {
            "" => true,
            "stopped" | "stopping" => self.facts.launched.is_some_and(is_before),
            _ => false,
        };
        Err(if can_be_outdated {
            self.lacks(denial)
        } else {
            denial.into()
        })
    }

    fn is_as_documented(&self) -> Result<(), Refusal> {
        let (facts, expected) = (self.facts, self.expected);
        for (what, of_ec2, is_expected) in [
            ("ID", &facts.id, expected.instance),
            ("account", &facts.owner, expected.account),
            ("availability zone", &facts.zone, expected.zone),
        ] {
            let denial = self.contradicts(what);
            ensure!(!of_ec2.is_empty(), self.lacks(denial));
            ensure!(of_ec2 == is_expected, denial.into());
        }
        Ok(())
    }

    fn is_of_this_launch(&self) -> Result<(), Refusal> {
        match self.facts.launched {
            None => Err(self.lacks(self.contradicts("launch"))),
            Some(launched) if launched > self.expected.launched + LAUNCH_LEEWAY => {
                Err(AwsDenial::DocumentOfEarlierLaunch(self.instance()).into())
            }
            Some(_) => Ok(()),
        }
    }

    fn has_first_interface(&self) -> Result<(), Refusal> {
        match self.facts.first_interface {
            Some(_) => Ok(()),
            None => Err(self.lacks(self.incomplete("first network interface"))),
        }
    }

    fn is_of_cluster(&self, policy: &AwsPolicy) -> Result<(), Refusal> {
        let own = policy.cluster.as_ref();
        let own = own.map(|name| format!("{OWNERSHIP_TAG}{name}"));
        if let Some(own) = &own {
            let mut owners = self.facts.tags.iter().filter(|(key, value)| {
                key.starts_with(OWNERSHIP_TAG) && *value == OWNED && *key != own
            });
            ensure!(owners.next().is_none(), self.mistagged(own).into());
        }
        let own = own.filter(|_| policy.settings.required_tags.is_empty());
        let required = policy.settings.required_tags.iter();
        let required = required.map(|(key, value)| (key.as_str(), value.as_str()));
        let wanted = own.iter().map(|own| (own.as_str(), OWNED)).chain(required);
        for (key, value) in wanted {
            match self.facts.tags.get(key) {
                Some(found) if found == value => {}
                Some(_) => return Err(self.mistagged(key).into()),
                None => return Err(self.lacks(self.mistagged(key))),
            }
        }
        Ok(())
    }

    fn node_name(&self, policy: AwsNodeName) -> Result<NodeName, Refusal> {
        let nameless = || self.lacks(AwsDenial::InstanceNameless(self.instance()));
        node_name(self.facts, policy).ok_or_else(nameless)
    }

    /// Checks whether the root volume or the first interface was attached at a different time. For a young instance,
    /// EC2 can report missing attachments later.
    fn moved(&self) -> Result<Option<AwsDenial>, Refusal> {
        let RootDevice::Volume(volume) = self.facts.root else {
            return Ok(None);
        };
        let time = |attachment: Option<Attachment>| attachment?.time;
        let Some(volume) = time(volume) else {
            return self.not_shown("root volume");
        };
        let Some(interface) = time(self.facts.first_interface) else {
            return self.not_shown("first network interface");
        };
        let apart = apart(volume, interface);
        let moved = || AwsDenial::RootVolumeMoved(self.instance(), apart.as_secs());
        Ok((apart > ATTACHED_TOGETHER).then(moved))
    }

    /// Returns the denial for a first claim, or a deferral if the instance is young.
    fn not_shown(&self, what: &'static str) -> Result<Option<AwsDenial>, Refusal> {
        if is_young(self.expected, self.now) {
            return Err(self.lacks(self.incomplete(what)));
        }
        Ok(Some(self.incomplete(what)))
    }

    fn contradicts(&self, what: &'static str) -> AwsDenial {
        AwsDenial::InstanceContradictsDocument(self.instance(), what)
    }

    fn incomplete(&self, what: &'static str) -> AwsDenial {
        AwsDenial::InstanceIncomplete(self.instance(), what)
    }

    fn mistagged(&self, tag: &str) -> AwsDenial {
        AwsDenial::TagMismatch {
            instance: self.instance(),
            tag: tag.to_owned(),
        }
    }
}

fn not_there(expected: Expected<'_>, now: SystemTime, denial: AwsDenial) -> Refusal {
    if is_young(expected, now) {
        return Deferral::InstanceNotVisible(expected.instance.to_owned()).into();
    }
    denial.into()
}

fn is_young(expected: Expected<'_>, now: SystemTime) -> bool {
    // A launch time in the future also counts as young, because clocks differ.
    age(expected.launched, now).unwrap_or_default() < YOUNG
}

#[cfg(test)]
mod tests;
