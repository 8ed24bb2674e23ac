//! Replaces the cluster's CA on the control plane.

use std::fs;

use super::builder::{
    CLIENT_CAS, write_admin_kubeconfig, write_manager_kubeconfig, write_serving_certificate,
};
use super::{ControlPlane, write};
use crate::pki::CertificateAuthority;

impl ControlPlane {
    /// Replaces the CAs (PEM) whose client certificates the API server accepts. The API server reloads their file some
    /// time later.
    #[track_caller]
    pub fn accept_clients_of(&self, cas: &str) {
        // Replace the file in one step, because the API server can read it at any time.
        let new = self.scratch.write("client-ca.new", cas);
        fs::rename(new, self.scratch.join(CLIENT_CAS)).expect("replace the file");
    }

    /// Replaces the certificates of the API server, of the administrator and of kube-controller-manager with
    /// certificates from this CA, and restarts both programs. The API server must accept this CA for clients.
    /// kube-controller-manager keeps its signing key.
    #[track_caller]
    pub fn issue_again(&self, ca: &CertificateAuthority) {
        write_serving_certificate(&self.scratch, ca);
        write_admin_kubeconfig(&self.scratch, &self.server, ca);
        write_manager_kubeconfig(&self.scratch, &self.server, ca);
        self.admin.read_again();
        self.restart_apiserver();
        if let Some(manager) = &self.controller_manager {
            let mut manager = write(manager);
            manager.kill();
            *manager = manager.start_again();
        }
    }
}
