//! The local facts about a node: the host name, and the arguments of the kubelet.

use crate::backoff::FailureScope;
use crate::failure::Failure;
use crate::kube::kubeconfig::changed_at;
use crate::kubelet::{KubeletArguments, host_name};
use crate::machine::Machine;
use crate::node_name::{Bound, NameSources};
use crate::settings::Settings;

/// The node's name in the kubelet's arguments, and the host name.
#[derive(Debug)]
pub(crate) struct Local {
    /// The arguments of the kubelet, if they are known.
    kubelet: Result<Option<KubeletArguments>, Failure>,
    host_name: String,
}

impl Local {
    /// Reads the host name, and the arguments of the kubelet that started this process, or otherwise the arguments in
    /// its unit.
    pub(crate) fn read(machine: &Machine) -> Self {
        Self::of(KubeletArguments::of_kubelet(machine))
    }

    /// Reads the host name, and uses these arguments of the kubelet.
    pub(crate) fn of(kubelet: Result<Option<KubeletArguments>, Failure>) -> Self {
        let host_name = host_name();
        Self { kubelet, host_name }
    }

    /// The arguments of the kubelet.
    pub(crate) fn kubelet(&self) -> Option<&KubeletArguments> {
        self.kubelet.as_ref().ok()?.as_ref()
    }

    /// Returns the sources of the node's name.
    ///
    /// # Errors
    ///
    /// The kubelet's arguments are unknown. Without the arguments, the name or the provider ID in the first certificate
    /// could differ from the kubelet's values.
    pub(crate) fn sources<'a>(
        &'a self,
        settings: &'a Settings,
        bound: Option<&'a Bound>,
    ) -> Result<NameSources<'a>, Failure> {
        let is_told = settings.node_name.is_some() && settings.provider_id.is_some();
        if let (Err(failure), None, false) = (&self.kubelet, bound, is_told) {
            return Err(failure.clone());
        }
        Ok(NameSources {
            settings: settings.node_name.as_ref(),
            bound,
            kubelet: self.kubelet(),
            host_name: &self.host_name,
            bootstrap: &settings.bootstrap_kubeconfig,
        })
    }

    /// The scope of a failure on this machine. A failure does not apply to a different node name or bootstrap
    /// credential.
    pub(super) fn scope(&self, settings: &Settings, machine: &Machine) -> FailureScope {
        let name = if let Some(name) = &settings.node_name {
            name.as_str()
        } else {
            let kubelet = self.kubelet().and_then(KubeletArguments::hostname_override);
            kubelet.unwrap_or(&self.host_name)
        };
        let bootstrap = &settings.bootstrap_kubeconfig;
        FailureScope {
            boot_id: machine.boot_id(),
            settings: settings.digest(&format!("{name} {:?}", changed_at(bootstrap))),
        }
    }
}
