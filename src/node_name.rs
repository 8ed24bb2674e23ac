//! Which node this machine is.
//!
//! The kubelet registers its Node under a name of its own choosing, and the certificate has to
//! carry the same one. So the name is found where the kubelet finds it: `GetHostname` in
//! Kubernetes' `component-helpers/node/util`.

use std::fmt;

use kubelet_attestation::names::{NodeName, ProviderId};

use crate::kubelet::KubeletArguments;

/// The longest value of a label: the kubelet labels its Node `kubernetes.io/hostname=<name>`.
const MAX_LABEL_LEN: usize = 63;

/// Where a name was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum NameSource {
    /// `nodeName` in the settings.
    Settings,
    /// The store, which was enrolled under it.
    StoreContents,
    /// `--hostname-override` of the kubelet that started us.
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
            Self::StoreContents => "the name stored at the first enrolment",
            Self::Kubelet => "the kubelet's --hostname-override",
            Self::KubeadmFlags => "--hostname-override in /var/lib/kubelet/kubeadm-flags.env",
            Self::HostName => "the host name",
        })
    }
}

/// There is no name that this node can have.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum NodeNameError {
    /// A name that no Node can have: a matter of configuration.
    #[error("{source_of} is {found:?}, which no Node can be called: {why}; {remedy}")]
    Unusable {
        /// Where it was found.
        source_of: NameSource,
        /// The name, shortened.
        found: String,
        /// What is wrong with it.
        why: &'static str,
        /// What to do about it.
        remedy: &'static str,
    },
    /// The store was enrolled under another name than the one now asked for: a name mismatch.
    #[error(
        "{source_of} is {asked}, but this node was enrolled as {stored}; \
         name it {stored} again, or run `reset` to enrol it as {asked}"
    )]
    Mismatch {
        /// Who asks for another name.
        source_of: NameSource,
        /// The name asked for.
        asked: NodeName,
        /// The name in the store.
        stored: NodeName,
    },
}

/// All that may say what this node is called.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct NameSources<'a> {
    /// `nodeName` in the settings.
    pub settings: Option<&'a NodeName>,
    /// The name that the store was enrolled under.
    pub stored: Option<&'a NodeName>,
    /// The arguments of the kubelet that started us.
    pub kubelet: Option<&'a KubeletArguments>,
    /// The arguments that kubeadm wrote down for the kubelet.
    pub kubeadm: Option<&'a KubeletArguments>,
    /// The machine's host name.
    pub host_name: &'a str,
}

impl<'a> NameSources<'a> {
    /// A machine of which nothing but the host name is known.
    pub fn of_host(host_name: &'a str) -> Self {
        Self {
            settings: None,
            stored: None,
            kubelet: None,
            kubeadm: None,
            host_name,
        }
    }

    /// Decides what this node is called.
    ///
    /// The settings win over the stored name, that over what the kubelet was told, and that over
    /// the host name. A stored name never yields silently: where the settings or the kubelet that
    /// started us ask for another, the answer is [`NodeNameError::Mismatch`], because the
    /// certificate would not fit the Node.
    pub fn decide(&self) -> Result<NodeName, NodeNameError> {
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

    /// The host name, where the kubelet that started us registers its Node under it although the
    /// stored name is another: the certificate does not fit that Node.
    pub fn passed_over(&self) -> Option<NodeName> {
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

/// The provider ID that the kubelet was told, by its own arguments or else by those that kubeadm
/// wrote down.
pub fn kubelets_provider_id(
    kubelet: Option<&KubeletArguments>,
    kubeadm: Option<&KubeletArguments>,
) -> Option<Result<ProviderId, kubelet_attestation::names::InvalidName>> {
    [kubelet, kubeadm]
        .into_iter()
        .flatten()
        .find_map(KubeletArguments::provider_id)
        .map(ProviderId::parse)
}

/// A name as the kubelet folds it: without space around it, in lower case.
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
