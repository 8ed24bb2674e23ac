//! The names that a machine's Node can have, and the precedence of machines that share a name.

use kubelet_attestation::ensure;
use kubelet_attestation::names::NodeName;
use node_attestation_core::inventory::{Machine, Naming};
use node_attestation_core::refusal::Unavailable;

use super::view::{MAX_NAMESAKES, Need, View, too_many};
use crate::capi::objects;
use crate::capi::store::Ground;

impl<'a> View<'a> {
    /// Checks whether the Node of this machine can have this name.
    ///
    /// If two machines can have the name, the machine with the stronger ground gets the name. So a name that only a
    /// guest reports never blocks a machine whose objects contain that name.
    ///
    /// # Errors
    ///
    /// Too many other machines can have the name, or an unknown pool member can have it.
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
        // If several machines have the name in their `KubeadmConfig`s, the first machine gets it, because its record is
        // in the ledger.
        if candidate == Some(Ground::Written) {
            return Ok(Naming::Own);
        }
        // The name can be in the `KubeadmConfig` of any joining machine.
        self.need(Need::Joining);
        let Some(candidate) = candidate else {
            let is_anothers = || self.strongest_but(name, asked, Ground::Reported);
            // The infrastructure can report more names later.
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

    /// The Node name of this machine.
    ///
    /// This is the Node that Cluster API has found, if the infrastructure also reports its name, or the machine's
    /// objects contain it. Otherwise, it is the first name that the Node can have. Cluster API finds a Node by the
    /// provider ID that the Node reports, and that ID can belong to another machine.
    pub(super) fn node(self, name: &str, machine: &objects::Machine) -> Option<NodeName> {
        let is_its = |node: &&NodeName| {
            let mut reported = machine.dns_names.iter();
            reported.any(|own| own == node.as_str())
                || self.candidate(name, machine, node.as_str()).is_some()
        };
        let found = machine.node.as_ref().filter(is_its).cloned();
        found.or_else(|| self.node_name(name, machine))
    }

    /// The first name that the machine's Node can have. `None` while the `KubeadmConfig` is unknown.
    pub(super) fn node_name(self, name: &str, machine: &objects::Machine) -> Option<NodeName> {
        let knows = self.knows_config(machine);
        knows.then(|| self.candidates(name, machine).next())?
    }

    /// Whether the `KubeadmConfig` was read, if the Machine has one.
    fn knows_config(self, machine: &objects::Machine) -> bool {
        machine.config.is_none() || self.config(machine).is_some()
    }

    /// The ground on which the Node can have this name, if one is known.
    pub(super) fn candidate(
        self,
        name: &str,
        machine: &objects::Machine,
        wanted: &str,
    ) -> Option<Ground> {
        let mut names = self.names(name, machine);
        names.find_map(|(ground, own)| (own == wanted).then_some(ground))
    }

    /// The known names that the Node can have, strongest ground first.
    fn candidates(
        self,
        name: &'a str,
        machine: &'a objects::Machine,
    ) -> impl Iterator<Item = NodeName> {
        let names = self.names(name, machine);
        names.filter_map(|(_, name)| NodeName::parse(name).ok())
    }

    /// The name in the `KubeadmConfig`, if it has one. Otherwise, the names of the `InfraMachine` and the Machine, and
    /// the names that the infrastructure reports for the host.
    fn names(
        self,
        name: &'a str,
        machine: &'a objects::Machine,
    ) -> impl Iterator<Item = (Ground, &'a str)> {
        let written = self.config(machine).and_then(|one| one.node_name.as_ref());
        let infrastructure = machine.infra_name.as_deref();
        let infrastructure = infrastructure.map(|name| (Ground::InfraMachine, name));
        let reported = machine.host_names.iter();
        let reported = reported.map(|name| (Ground::Reported, name.as_str()));
        let others = infrastructure.into_iter();
        let others = others.chain([(Ground::Machine, name)]).chain(reported);
        let others = others.filter(move |_| written.is_none());
        let written = written.map(|name| (Ground::Written, name.as_str()));
        written.into_iter().chain(others)
    }

    /// The other machine with the strongest ground for the name, if that ground is not weaker than `weakest`.
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
                // A guest can influence these grounds, so they must not take precedence over an unknown member. The
                // stronger grounds are names in objects of the Cluster.
                if weakest > Ground::Machine {
                    self.knows_all_members()?;
                }
            }
        }
        Ok(None)
    }
}

fn found(machine: &objects::Machine, asked: &NodeName) -> Option<Ground> {
    (machine.node.as_ref() == Some(asked)).then_some(Ground::Node)
}
