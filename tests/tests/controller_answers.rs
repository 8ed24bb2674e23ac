//! What the controller answers, to requests in an API server in this process.

use std::path::Path;

use kubelet_authenticator_test_support::api_server::ApiServer;
use kubelet_authenticator_test_support::process::Scratch;
use kubelet_authenticator_tests::controller::{
    Application, Setup, certificate_of, reason_of, wait_for_csr,
};
use kubelet_authenticator_tests::program;
use serde_json::Value;

/// An API server, and a controller's files for it.
struct Bed {
    server: ApiServer,
    setup: Setup,
    _files: Scratch,
}

impl Bed {
    fn insecure() -> Self {
        Self::new(&program("node-attestation-controller")).args(&["--allow-insecure"])
    }

    fn null() -> Self {
        Self::new(Path::new(env!("CARGO_BIN_EXE_null-attestation-controller")))
    }

    fn new(program: &Path) -> Self {
        let server = ApiServer::start();
        let files = Scratch::new("cluster");
        let kubeconfig = server.write_admin_kubeconfig(files.path());
        let (ca_cert, ca_key) = server.write_ca(files.path());
        let setup = Setup::new(program, &kubeconfig, &ca_cert, &ca_key);
        Self {
            server,
            setup,
            _files: files,
        }
    }

    fn args(mut self, arguments: &[&str]) -> Self {
        self.setup = self.setup.args(arguments);
        self
    }
}

fn answered(csr: &Value) -> bool {
    certificate_of(csr).is_some()
        || ["Denied", "Failed"]
            .iter()
            .any(|kind| reason_of(csr, kind).is_some())
}

#[test]
fn a_machine_with_its_own_token_gets_its_certificate() {
    let bed = Bed::insecure();
    let mut controller = bed.setup.start();
    let name = Application::insecure("worker-1").put(&bed.server);

    let csr = wait_for_csr(&bed.server, &name, answered);

    assert_eq!(reason_of(&csr, "Approved"), Some("NodeNameClaimed"));
    assert!(certificate_of(&csr).is_some(), "{csr:#}");
    let line = controller.wait_for_decision(&name);
    assert_eq!(line["outcome"], "issued");
    assert_eq!(line["node"], "worker-1");
    assert_eq!(line["provider"], "insecure");
    assert_eq!(line["check"], "sign");
    assert_eq!(line["requester"], "system:bootstrap:token1");
    assert_eq!(controller.stop(), Some(0));
}

#[test]
fn a_rubber_stamp_is_as_good_as_its_verifier_says() {
    let bed = Bed::null();
    let _controller = bed.setup.start();
    let name = Application::null("worker-1", bed.server.ca_pem()).put(&bed.server);

    let csr = wait_for_csr(&bed.server, &name, answered);

    assert!(certificate_of(&csr).is_some(), "{csr:#}");
}
