//! The names that a machine's Node may have, and the order of two machines that share one.

use kubelet_attestation::ensure;
use kubelet_attestation::names::NodeName;
use node_attestation_core::inventory::{Machine, Naming};
use node_attestation_core::refusal::Unavailable;

use super::view::{MAX_NAMESAKES, Need, View, too_many};
use crate::capi::objects;
use crate::capi::store::Ground;

impl<'a> View<'a> {
    /// Whether the Node of this machine may have this name. Of two machines with one name, that with
    /// the stronger ground has it: what a guest reports of itself keeps no other machine from a name
    /// that its objects have.
    ///
    /// # Errors
    ///
    /// Too many others may have the name.
    pub(super) fn naming(
        self,
        of: &'a Machine,
        asked: &'a NodeName,
    ) -> Result<Naming, Unavailable> {
        let name = of.name.as_str();
        let Some(machine) = self.members.machines.get(name) else {
            return Ok(Naming::only(of.node_name.as_ref(), asked));
        };
        if !self.knows_config(machine) {
            return Ok(Naming::Unknown);
        }
        let candidate = self.candidate(name, machine, asked.as_str());
        // If several have it in their `KubeadmConfig`s, the first has it: its record is in the ledger.
        if candidate == Some(Ground::Written) {
            return Ok(Naming::Own);
        }
        // Any of their `KubeadmConfig`s may have this name.
        self.need(Need::Joining);
        let Some(candidate) = candidate else {
            let is_anothers = || self.strongest_but(name, asked, Ground::Reported);
            // More names may be reported later.
            if !machine.provisioned && is_anothers()?.is_none() {
                return Ok(Naming::Unknown);
            }
            return Ok(Naming::Another(self.candidates(name, machine).collect()));
        };
        let own = found(machine, asked).map_or(candidate, |found| found.min(candidate));
        Ok(match self.strongest_but(name, asked, own)? {
            Some(other) => Naming::Shared { other },
            None => Naming::Own,
        })
    }

    /// The name of the Node that Cluster API has found for it, where the infrastructure reports that
    /// name too, or the machine's objects have it; else the first that its Node may have. Cluster API
    /// finds a Node by the provider ID that the Node gives itself, which may be another machine's.
    pub(super) fn node(self, name: &str, machine: &objects::Machine) -> Option<NodeName> {
        let is_its = |node: &&NodeName| {
            let mut reported = machine.dns_names.iter();
            reported.any(|own| own == node.as_str())
                || self.candidate(name, machine, node.as_str()).is_some()
        };
        let found = machine.node.as_ref().filter(is_its).cloned();
        found.or_else(|| self.node_name(name, machine))
    }

    /// The first name that its Node may have; none while the `KubeadmConfig` is not known.
    pub(super) fn node_name(self, name: &str, machine: &objects::Machine) -> Option<NodeName> {
        let knows = self.knows_config(machine);
        knows.then(|| self.candidates(name, machine).next())?
    }

    /// Whether the `KubeadmConfig` was read, if the Machine has one.
    fn knows_config(self, machine: &objects::Machine) -> bool {
        machine.config.is_none() || self.config(machine).is_some()
    }

    /// The ground on which the Node may have this name, as far as is known.
    pub(super) fn candidate(
        self,
        name: &str,
        machine: &objects::Machine,
        wanted: &str,
    ) -> Option<Ground> {
        let mut names = self.names(name, machine);
        names.find_map(|(ground, own)| (own == wanted).then_some(ground))
    }

    /// The names that the Node may have, as far as is known, the strongest ground first.
    fn candidates(
        self,
        name: &'a str,
        machine: &'a objects::Machine,
    ) -> impl Iterator<Item = NodeName> {
        let names = self.names(name, machine);
        names.filter_map(|(_, name)| NodeName::parse(name).ok())
    }

    /// The name that is written out in the `KubeadmConfig`, and no other beside it; else those of the
    /// `InfraMachine` and the Machine, and those that are reported of the host.
    fn names(
        self,
        name: &'a str,
        machine: &'a objects::Machine,
    ) -> impl Iterator<Item = (Ground, &'a str)> {
        let written = self.config(machine).and_then(|one| one.node_name.as_ref());
        let infrastructure = machine.infrastructure.as_ref();
        let infrastructure = infrastructure.map(|one| (Ground::InfraMachine, one.name.as_str()));
        let reported = machine.host_names.iter();
        let reported = reported.map(|name| (Ground::Reported, name.as_str()));
        let others = infrastructure.into_iter();
        let others = others.chain([(Ground::Machine, name)]).chain(reported);
        let others = others.filter(move |_| written.is_none());
        let written = written.map(|name| (Ground::Written, name.as_str()));
        written.into_iter().chain(others)
    }

    /// The other machine with the strongest ground for the name, if it is not weaker than `weakest`.
    fn strongest_but(
        self,
        name: &str,
        asked: &NodeName,
        weakest: Ground,
    ) -> Result<Option<String>, Unavailable> {
        for ground in Ground::ALL.into_iter().filter(|ground| *ground <= weakest) {
            let mut known = self.members.named(ground, asked.as_str());
            for (other, machine) in known.by_ref().take(MAX_NAMESAKES) {
                let candidate = self.candidate(other, machine, asked.as_str());
                let strongest = candidate.into_iter().chain(found(machine, asked)).min();
                if other != name && strongest == Some(ground) {
                    return Ok(Some(other.to_owned()));
                }
            }
            ensure!(known.next().is_none(), too_many(asked.as_str()));
            if ground == Ground::InfraMachine {
                let listed = self.listed_named(asked.as_str())?.into_iter().next();
                if let Some(member) = listed {
                    return Ok(Some(member.name));
                }
            }
        }
        Ok(None)
    }
}

fn found(machine: &objects::Machine, asked: &NodeName) -> Option<Ground> {
    (machine.node.as_ref() == Some(asked)).then_some(Ground::Node)
}
