//! The name of the node, and the provider ID of the machine.

use kubelet_attestation::names::{NodeName, ProviderId};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;

use super::attempt::Attempt;
use super::local::Local;
use super::remedies::bootstrap_refused;
use super::{Authenticator, Caller};
use crate::attester::ProviderIdSources;
use crate::clock;
use crate::credential::{Leaf, parse};
use crate::failure::Failure;
use crate::kube::ApiClient;
use crate::kube::kubeconfig::{Kubeconfig, Login};
use crate::kubelet::KubeletArguments;
use crate::node_name::{Bound, NameSources};
use crate::pending::{OpenRequest, Subject};
use crate::settings::Settings;
use crate::store_contents::StoreContents;

/// The certificate that binds the node to its name. This is the stored certificate, or the certificate with which an
/// existing node is adopted.
pub(crate) fn bound(settings: &Settings, stored: &StoreContents) -> Option<Bound> {
    if let (Some(_), Some(origin)) = (&stored.credential, &stored.origin) {
        return Some(Bound::Stored(origin.node_name.clone()));
    }
    let path = &settings.bootstrap_kubeconfig;
    let login = Kubeconfig::read(path).ok()?.login;
    node_of(&login).map(|name| Bound::Adopted(name, path.clone()))
}

/// The node in the login's certificate.
pub(crate) fn node_of(login: &Login) -> Option<NodeName> {
    let Login::ClientCertificate { chain_pem, .. } = login else {
        return None;
    };
    let leaf = CertificateDer::from_pem_slice(chain_pem.as_bytes()).ok()?;
    Leaf::of(&parse(&leaf).ok()?).ok()?.node_name
}

impl Authenticator<'_> {
    /// The node's name in the kubelet's arguments, and the host name.
    pub(crate) fn local(&self) -> Local {
        Local::read(&self.machine)
    }

    /// Warns if the kubelet's next start will use a name that does not match the stored certificate, because the host
    /// name changed.
    pub(crate) fn warn_of_host_name(&self) {
        let Ok((_, stored)) = self.stored() else {
            return;
        };
        if let Some(bound @ Bound::Stored(_)) = bound(&self.settings, &stored)
            && let Ok(sources) = self.local().sources(&self.settings, Some(&bound))
            && let Some(passed_over) = sources.passed_over()
        {
            self.log
                .warn_of("the kubelet uses a different node name", &passed_over);
        }
    }

    /// Returns the name that this node would have if it had no certificate.
    pub(crate) fn unbound(&self) -> Result<NodeName, Failure> {
        self.local().sources(&self.settings, None)?.decide()
    }

    /// Compares the name of the stored certificate with the settings and the kubelet's arguments. A certificate that
    /// does not match the node name would be worse than no certificate.
    ///
    /// Runs for client-go do not query systemd, because client-go can also run the plugin outside a kubelet.
    pub(super) fn check_name(&self, stored: &StoreContents) -> Result<(), Failure> {
        let (Some(_), Some(origin)) = (&stored.credential, &stored.origin) else {
            return Ok(());
        };
        let kubelet = match self.caller {
            Caller::ClientGo => KubeletArguments::of_parent(),
            // If the kubelet's arguments are unknown, the certificate can still be used.
            Caller::Setup | Caller::Person => {
                KubeletArguments::of_kubelet(&self.machine).ok().flatten()
            }
        };
        let bound = Bound::Stored(origin.node_name.clone());
        let sources = NameSources {
            settings: self.settings.node_name.as_ref(),
            bound: Some(&bound),
            kubelet: kubelet.as_ref(),
            host_name: "",
            bootstrap: &self.settings.bootstrap_kubeconfig,
        };
        sources.decide().map(drop)
    }
}

impl Attempt {
    /// Returns the names of this node and machine. `known` is the provider ID of the open request, if a new query of
    /// the machine's identity is not necessary.
    pub(super) fn names(
        &self,
        bound: Option<&Bound>,
        known: Option<&ProviderId>,
    ) -> Result<(NodeName, ProviderId), Failure> {
        self.named(bound, known, |sources| self.attester.provider_id(sources))
    }

    /// Returns the node name, and the result of `ask`, which queries the sources of the provider ID.
    pub(super) fn named<T>(
        &self,
        bound: Option<&Bound>,
        known: Option<&ProviderId>,
        ask: impl FnOnce(&ProviderIdSources<'_>) -> Result<T, Failure>,
    ) -> Result<(NodeName, T), Failure> {
        let node_name = self.decided(bound)?;
        let sources = ProviderIdSources {
            settings: &self.settings,
            remembered: self.remembered.get().map(String::as_str),
            kubelet: self.local.kubelet(),
            machine: &self.machine,
            known,
            deadline: self.deadline,
        };
        let learned = ask(&sources)?;
        Ok((node_name, learned))
    }

    /// Returns the name of this node. Warns if the kubelet has a different node name.
    pub(super) fn decided(&self, bound: Option<&Bound>) -> Result<NodeName, Failure> {
        let sources = self.local.sources(&self.settings, bound)?;
        let node_name = sources.decide()?;
        if let Some(passed_over) = sources.passed_over() {
            self.log
                .warn_of("the kubelet uses a different node name", &passed_over);
        }
        Ok(node_name)
    }

    /// Returns the subject of the open request, if that request is approved and its name does not match `subject`. The
    /// approved name takes precedence, because the cluster already uses it for this machine. If the request is not
    /// approved, the run abandons it.
    pub(super) fn approved_under_another_name(
        &self,
        open: Option<&OpenRequest>,
        subject: &Subject,
        client: &ApiClient,
    ) -> Result<Option<Subject>, Failure> {
        let Some(open) = open.filter(|open| {
            let renamed = Subject {
                node_name: open.subject.node_name.clone(),
                ..subject.clone()
            };
            renamed != *subject && open.is_worth_taking_up(&renamed, None, clock::now())
        }) else {
            return Ok(None);
        };
        let found = client.get(&open.name, self.deadline);
        let found =
            found.map_err(|error| bootstrap_refused(error, &self.settings.bootstrap_kubeconfig))?;
        let (asked, name) = (&open.subject.node_name, &subject.node_name);
        if found.is_some_and(|found| found.is_approved) {
            self.log.warn(&format!(
                "the request for node {asked} was approved before the node name changed to {name}"
            ));
            return Ok(Some(open.subject.clone()));
        }
        self.log.step(&format!(
            "abandoned the request for node {asked}: the node name is now {name}"
        ));
        Ok(None)
    }
}
