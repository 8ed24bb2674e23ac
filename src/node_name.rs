//! The name of this node.
//!
//! The kubelet chooses the name of its Node, and the certificate must have the same name. Therefore, this module uses
//! the rules of the kubelet: `GetHostname` in Kubernetes' `component-helpers/node/util`.

use std::path::{Path, PathBuf};

use kubelet_attestation::names::NodeName;

use crate::failure::{Code, Failure};
use crate::kubelet::KubeletArguments;
use crate::process::command;

/// The maximum length of a label value: the kubelet labels its Node
/// `kubernetes.io/hostname=<name>`.
const MAX_LABEL_LEN: usize = 63;

/// The sources of a name, as errors mention them.
const SETTINGS: &str = "nodeName in the settings";
const KUBELET: &str = "the kubelet's --hostname-override";
const HOST_NAME: &str = "the host name";

/// A certificate that binds the node to its name. Without a certificate, a name is only a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Bound {
    /// The stored certificate, which might have expired.
    Stored(NodeName),
    /// The certificate of a node that joined earlier, from this bootstrap kubeconfig.
    Adopted(NodeName, PathBuf),
}

/// The sources of the node's name.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NameSources<'a> {
    /// `nodeName` in the settings.
    pub(crate) settings: Option<&'a NodeName>,
    /// The certificate that the node has.
    pub(crate) bound: Option<&'a Bound>,
    /// The arguments of the kubelet: from its running process, or for its next start.
    pub(crate) kubelet: Option<&'a KubeletArguments>,
    /// The machine's host name.
    pub(crate) host_name: &'a str,
    /// The bootstrap kubeconfig.
    pub(crate) bootstrap: &'a Path,
}

impl Bound {
    /// Returns the name in the certificate.
    pub(crate) fn name(&self) -> &NodeName {
        let (Self::Stored(name) | Self::Adopted(name, _)) = self;
        name
    }
}

impl NameSources<'_> {
    /// Determines the name of this node.
    ///
    /// The settings take precedence over the kubelet's arguments, and the arguments over the host name. The name in a
    /// certificate takes precedence over the host name. If the settings or the kubelet specify a name that differs from
    /// the certificate, the result is [`Code::NodeName`], because the certificate would not match the Node.
    pub(crate) fn decide(&self) -> Result<NodeName, Failure> {
        let kubelet = self.kubelet.and_then(KubeletArguments::hostname_override);
        let asked = match (self.settings, kubelet) {
            (Some(name), _) => Some((SETTINGS, label(SETTINGS, name.as_str())?)),
            (None, Some(name)) => Some((KUBELET, folded(KUBELET, name)?)),
            (None, None) => None,
        };
        match (asked, self.bound) {
            (Some((source, asked)), Some(bound)) if asked != *bound.name() => {
                Err(self.mismatch(&format!("{source} is {asked}"), &asked, bound))
            }
            (_, Some(bound)) => Ok(bound.name().clone()),
            (Some((_, asked)), None) => Ok(asked),
            (None, None) => folded(HOST_NAME, self.host_name),
        }
    }

    /// Returns the failure if the kubelet registers its Node with the host name although the certificate has a
    /// different name; `None` if the kubelet uses the certificate's name, or its arguments are unknown.
    pub(crate) fn passed_over(&self) -> Option<Failure> {
        let (None, Some(bound), Some(kubelet)) = (self.settings, self.bound, self.kubelet) else {
            return None;
        };
        if kubelet.hostname_override().is_some() {
            return None;
        }
        let host_name = folded(HOST_NAME, self.host_name).ok()?;
        let what = format!("{HOST_NAME} is {host_name}");
        (host_name != *bound.name()).then(|| self.mismatch(&what, &host_name, bound))
    }

    fn mismatch(&self, what: &str, asked: &NodeName, bound: &Bound) -> Failure {
        let kept = match self.settings {
            Some(_) => format!("set nodeName: {} in the settings", bound.name()),
            None => format!(
                "start the kubelet with --hostname-override={}",
                bound.name()
            ),
        };
        let bootstrap = self.bootstrap.display();
        let (bound, anew) = match bound {
            Bound::Stored(name) => (
                format!("this node was enrolled as {name}"),
                format!("run: {} reset --yes; then restart the kubelet", command()),
            ),
            Bound::Adopted(name, path) => (
                format!("the certificate in {} is for node {name}", path.display()),
                format!("run: {} renew", command()),
            ),
        };
        let remedy = format!(
            "{kept}; or, to enroll the node as {asked}, write a kubeconfig with a bootstrap token to \
             {bootstrap}, and {anew}"
        );
        Failure::new(Code::NodeName, format!("{what}, but {bound}"), remedy)
    }
}

/// Normalizes a name as the kubelet does: removes surrounding white space, and converts the name to lower case.
fn folded(source: &str, name: &str) -> Result<NodeName, Failure> {
    label(source, &name.trim().to_lowercase())
}

fn label(source: &str, name: &str) -> Result<NodeName, Failure> {
    let (why, remedy) = if name.is_empty() {
        ("it is empty", REMEDY)
    } else if name.ends_with('.') {
        ("it ends in a dot", DOT_REMEDY)
    } else if name.len() > MAX_LABEL_LEN {
        let why = "it is longer than 63 characters, the limit of a label value";
        (why, REMEDY)
    } else if let Ok(name) = NodeName::parse(name) {
        return Ok(name);
    } else {
        let why = "a DNS name can contain only lower-case letters, digits, '-' and '.', and each part must begin and \
            end with a letter or digit";
        (why, REMEDY)
    };
    let found: String = name.chars().take(MAX_LABEL_LEN + 1).collect();
    let what = format!("{source} is {found:?}, which is not a valid node name: {why}");
    Err(Failure::new(Code::Configuration, what, remedy))
}

const REMEDY: &str = "set a valid name with the kubelet's --hostname-override";
const DOT_REMEDY: &str =
    "remove the dot from the host name, or set a valid name with the kubelet's --hostname-override";

#[cfg(test)]
mod tests;
