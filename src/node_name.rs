//! The name of this node.
//!
//! The kubelet chooses the name of its Node, and the certificate must have the same one. So this
//! module follows the kubelet: `GetHostname` in Kubernetes' `component-helpers/node/util`.

use kubelet_attestation::names::{NodeName, ProviderId};

use crate::failure::{Code, Failure};
use crate::kubelet::KubeletArguments;

/// The maximum length of a label value: the kubelet labels its Node
/// `kubernetes.io/hostname=<name>`.
const MAX_LABEL_LEN: usize = 63;

/// The sources of a name, in errors.
const SETTINGS: &str = "nodeName in the settings";
const KUBELET: &str = "the kubelet's --hostname-override";
const KUBEADM_FLAGS: &str = "--hostname-override in /var/lib/kubelet/kubeadm-flags.env";
const HOST_NAME: &str = "the host name";

/// The sources of the node's name.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct NameSources<'a> {
    /// `nodeName` in the settings.
    pub(crate) settings: Option<&'a NodeName>,
    /// The name that the store was enrolled under.
    pub(crate) stored: Option<&'a NodeName>,
    /// The arguments of the kubelet that started this process.
    pub(crate) kubelet: Option<&'a KubeletArguments>,
    /// The kubelet's arguments in kubeadm's file.
    pub(crate) kubeadm: Option<&'a KubeletArguments>,
    /// The machine's host name.
    pub(crate) host_name: &'a str,
}

impl NameSources<'_> {
    /// Decides the name of this node.
    ///
    /// The settings win over the kubelet that started this process, kubeadm's file and the host
    /// name, in this order. A stored name wins over the last two, and never yields silently: if the
    /// settings or the kubelet ask for another name, the result is [`Code::NodeName`],
    /// because the certificate would not fit the Node.
    pub(crate) fn decide(&self) -> Result<NodeName, Failure> {
        let kubelet = self.kubelet.and_then(KubeletArguments::hostname_override);
        let asked = match (self.settings, kubelet) {
            (Some(name), _) => Some((SETTINGS, label(SETTINGS, name.as_str())?)),
            (None, Some(name)) => Some((KUBELET, folded(KUBELET, name)?)),
            (None, None) => None,
        };
        match (asked, self.stored) {
            (Some((source, asked)), Some(stored)) if asked != *stored => {
                let what = format!("{source} is {asked}, but this node was enrolled as {stored}");
                let remedy =
                    format!("name it {stored} again, or run `reset` to enrol it as {asked}");
                Err(Failure::new(Code::NodeName, what, remedy))
            }
            (_, Some(stored)) => Ok(stored.clone()),
            (Some((_, asked)), None) => Ok(asked),
            (None, None) => self.on_machine(),
        }
    }

    /// The host name, if the kubelet that started this process registers its Node under it although
    /// the stored name is another. The certificate does not fit that Node.
    pub(crate) fn passed_over(&self) -> Option<NodeName> {
        let (None, Some(stored), Some(kubelet)) = (self.settings, self.stored, self.kubelet) else {
            return None;
        };
        if kubelet.hostname_override().is_some() {
            return None;
        }
        let host_name = folded(HOST_NAME, self.host_name).ok()?;
        (host_name != *stored).then_some(host_name)
    }

    fn on_machine(&self) -> Result<NodeName, Failure> {
        match self.kubeadm.and_then(KubeletArguments::hostname_override) {
            Some(name) => folded(KUBEADM_FLAGS, name),
            None => folded(HOST_NAME, self.host_name),
        }
    }
}

/// The kubelet's provider ID, from its own arguments or else from kubeadm's file.
pub(crate) fn kubelets_provider_id(
    kubelet: Option<&KubeletArguments>,
    kubeadm: Option<&KubeletArguments>,
) -> Option<Result<ProviderId, kubelet_attestation::names::InvalidName>> {
    [kubelet, kubeadm]
        .into_iter()
        .flatten()
        .find_map(KubeletArguments::provider_id)
        .map(ProviderId::parse)
}

/// Normalizes a name as the kubelet does: no surrounding space, lower case.
fn folded(source: &str, name: &str) -> Result<NodeName, Failure> {
    label(source, &name.trim().to_lowercase())
}

fn label(source: &str, name: &str) -> Result<NodeName, Failure> {
    let (why, remedy) = if name.is_empty() {
        ("it is empty", REMEDY)
    } else if name.ends_with('.') {
        ("it ends in a dot", DOT_REMEDY)
    } else if name.len() > MAX_LABEL_LEN {
        let why = "it is longer than the 63 characters of a label's value";
        (why, REMEDY)
    } else if let Ok(name) = NodeName::parse(name) {
        return Ok(name);
    } else {
        let why = "a DNS name has lower-case letters, digits, '-' and '.', and each part begins \
                   and ends with a letter or digit";
        (why, REMEDY)
    };
    let found: String = name.chars().take(MAX_LABEL_LEN + 1).collect();
    let what = format!("{source} is {found:?}, which no Node can be called: {why}");
    Err(Failure::new(Code::Configuration, what, remedy))
}

const REMEDY: &str = "give the kubelet a good name with --hostname-override";
const DOT_REMEDY: &str =
    "set the host name without it, or give the kubelet a good name with --hostname-override";

#[cfg(test)]
mod tests;
