//! The name of this node.
//!
//! The kubelet chooses the name of its Node, and the certificate must have the same one. So this
//! module follows the kubelet: `GetHostname` in Kubernetes' `component-helpers/node/util`.

use std::fmt;

use kubelet_attestation::names::{NodeName, ProviderId};

use crate::kubelet::KubeletArguments;

/// The maximum length of a label value: the kubelet labels its Node
/// `kubernetes.io/hostname=<name>`.
const MAX_LABEL_LEN: usize = 63;

/// The source of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NameSource {
    /// `nodeName` in the settings.
    Settings,
    /// `--hostname-override` of the kubelet that started this process.
    Kubelet,
    /// `--hostname-override` in the file that kubeadm writes.
    KubeadmFlags,
    /// The machine's host name.
    HostName,
}

impl fmt::Display for NameSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Settings => "nodeName in the settings",
            Self::Kubelet => "the kubelet's --hostname-override",
            Self::KubeadmFlags => "--hostname-override in /var/lib/kubelet/kubeadm-flags.env",
            Self::HostName => "the host name",
        })
    }
}

/// The node has no valid name.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum NodeNameError {
    /// The name is invalid for a Node: a configuration error.
    #[error("{source_of} is {found:?}, which no Node can be called: {why}; {remedy}")]
    Unusable {
        /// The source of the name.
        source_of: NameSource,
        /// The name, shortened.
        found: String,
        /// What is invalid.
        why: &'static str,
        /// What to do about it.
        remedy: &'static str,
    },
    /// The store was enrolled under another name than the requested one.
    #[error(
        "{source_of} is {asked}, but this node was enrolled as {stored}; \
         name it {stored} again, or run `reset` to enrol it as {asked}"
    )]
    Mismatch {
        /// The source of the requested name.
        source_of: NameSource,
        /// The requested name.
        asked: NodeName,
        /// The name in the store.
        stored: NodeName,
    },
}

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
    /// settings or the kubelet ask for another name, the result is [`NodeNameError::Mismatch`],
    /// because the certificate would not fit the Node.
    pub(crate) fn decide(&self) -> Result<NodeName, NodeNameError> {
        let asked = match (
            self.settings,
            self.kubelet.and_then(KubeletArguments::hostname_override),
        ) {
            (Some(name), _) => Some((
                NameSource::Settings,
                label(NameSource::Settings, name.as_str())?,
            )),
            (None, Some(name)) => Some((NameSource::Kubelet, folded(NameSource::Kubelet, name)?)),
            (None, None) => None,
        };
        match (asked, self.stored) {
            (Some((source_of, asked)), Some(stored)) if asked != *stored => {
                Err(NodeNameError::Mismatch {
                    source_of,
                    asked,
                    stored: stored.clone(),
                })
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
        let host_name = folded(NameSource::HostName, self.host_name).ok()?;
        (host_name != *stored).then_some(host_name)
    }

    fn on_machine(&self) -> Result<NodeName, NodeNameError> {
        match self.kubeadm.and_then(KubeletArguments::hostname_override) {
            Some(name) => folded(NameSource::KubeadmFlags, name),
            None => folded(NameSource::HostName, self.host_name),
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
fn folded(source_of: NameSource, name: &str) -> Result<NodeName, NodeNameError> {
    label(source_of, &name.trim().to_lowercase())
}

fn label(source_of: NameSource, name: &str) -> Result<NodeName, NodeNameError> {
    let refuse = |why, remedy| {
        let found = name.chars().take(MAX_LABEL_LEN + 1).collect();
        Err(NodeNameError::Unusable {
            source_of,
            found,
            why,
            remedy,
        })
    };
    if name.is_empty() {
        return refuse("it is empty", REMEDY);
    }
    if name.ends_with('.') {
        return refuse("it ends in a dot", DOT_REMEDY);
    }
    if name.len() > MAX_LABEL_LEN {
        return refuse(
            "it is longer than the 63 characters of a label's value",
            REMEDY,
        );
    }
    let Ok(name) = NodeName::parse(name) else {
        return refuse(
            "a DNS name has lower-case letters, digits, '-' and '.', and each part begins and ends with a letter or digit",
            REMEDY,
        );
    };
    Ok(name)
}

const REMEDY: &str = "give the kubelet a good name with --hostname-override";
const DOT_REMEDY: &str =
    "set the host name without it, or give the kubelet a good name with --hostname-override";

#[cfg(test)]
mod tests;
