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
    /// If two machines can have the name, the machine with the stronger ground gets it. Therefore a name that only a
    /// guest reports never blocks a machine whose objects contain that name.
    ///
    /// # Errors
    ///
    /// Returns an error if too many other machines can have the name, or if an unknown pool member can have it.
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
        // If several machines have the name in their `KubeadmConfig`s, the first machine that claims the name gets it,
        // because the ledger then has a record of this machine.
        if candidate == Some(Ground::Written) {
            return Ok(Naming::Own);
        }
        // Any joining machine's `KubeadmConfig` could contain the name.
        self.need(Need::Joining);
        let Some(candidate) = candidate else {
            let is_anothers = || self.strongest_but(name, asked, Ground::Reported);
            // The infrastructure might report more names later.
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

    /// The name of this machine's Node.
    ///
    /// This is the Node that Cluster API has found, provided that the infrastructure also reports its name, or the
    /// machine's objects contain it. Otherwise, it is the first possible Node name. The additional check is necessary
    /// because Cluster API finds a Node by the provider ID that the Node reports, and that provider ID might belong to
    /// another machine.
    pub(super) fn node(self, name: &str, machine: &objects::Machine) -> Option<NodeName> {
        let is_its = |node: &&NodeName| {
            let mut reported = machine.dns_names.iter();
            reported.any(|own| own == node.as_str())
                || self.candidate(name, machine, node.as_str()).is_some()
        };
        let found = machine.node.as_ref().filter(is_its).cloned();
        found.or_else(|| self.node_name(name, machine))
    }

    /// The first possible Node name. `None` while the `KubeadmConfig` is unknown.
    pub(super) fn node_name(self, name: &str, machine: &objects::Machine) -> Option<NodeName> {
        let knows = self.knows_config(machine);
        knows.then(|| self.candidates(name, machine).next())?
    }

    /// Whether the `KubeadmConfig` was read. Also true if the Machine does not have a `KubeadmConfig`.
    fn knows_config(self, machine: &objects::Machine) -> bool {
        machine.config.is_none() || self.config(machine).is_some()
    }

    /// The strongest ground that permits the Node to have this name. `None` if no ground is known.
    pub(super) fn candidate(
        self,
        name: &str,
        machine: &objects::Machine,
        wanted: &str,
    ) -> Option<Ground> {
        let mut names = self.names(name, machine);
        names.find_map(|(ground, own)| (own == wanted).then_some(ground))
    }

    /// The known possible Node names, strongest ground first.
    fn candidates(
        self,
        name: &'a str,
        machine: &'a objects::Machine,
    ) -> impl Iterator<Item = NodeName> {
        let names = self.names(name, machine);
        names.filter_map(|(_, name)| NodeName::parse(name).ok())
    }

    /// The name in the `KubeadmConfig`, if it contains one. Otherwise, the names of the `InfraMachine` and the Machine,
    /// and the host names that the infrastructure reports.
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

    /// The other machine with the strongest ground for the name, unless that ground is weaker than `weakest`.
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
                // stronger grounds are names in the Cluster's objects, which a guest cannot influence.
                if weakest > Ground::Machine {
                    self.knows_all_names()?;
                }
            }
        }
        Ok(None)
    }
}

fn found(machine: &objects::Machine, asked: &NodeName) -> Option<Ground> {
    (machine.node.as_ref() == Some(asked)).then_some(Ground::Node)
}
