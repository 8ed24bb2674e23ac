//! A cluster whose machines use a rubber stamp as evidence, and the requests to this cluster.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use kubelet_authenticator_test_support::control_plane::{Controllers, Kubectl, User};
use kubelet_authenticator_test_support::pki::KeyAndCertificate;
use kubelet_authenticator_test_support::process::poll;
use serde_json::{Value, json};

use crate::absence::{Later, assert_refused, assert_unanswered};
use crate::access;
use crate::controller::{Application, certificate_of, is_answered};
use crate::fleet::{Authentication, Manager, authorize, condition_of, management};
use crate::management::{Machine, Management, WorkloadCluster};

/// The deadline for the results of a cluster's round on a busy machine.
pub const SWEPT: Duration = Duration::from_secs(180);

/// A management cluster and the controller in it.
#[derive(Debug)]
pub struct Site {
    /// The management cluster.
    pub management: Management,
    /// The controller.
    pub manager: Manager,
}

impl Site {
    /// Starts a site without Clusters.
    #[track_caller]
    pub fn start() -> Arc<Self> {
        Self::of(|management| Manager::null(management, &[]))
    }

    /// Starts a site whose controller has only the permissions in its manifest in each Cluster of a scene.
    #[track_caller]
    pub fn least_privileged() -> Arc<Self> {
        Self::of(Manager::null_with_own_access)
    }

    /// Starts a site whose controller inspects Clusters with the default period.
    #[track_caller]
    pub fn rarely_inspected() -> Arc<Self> {
        Self::of(Manager::null_with_default_period)
    }

    /// Starts a site whose controller also admits machines without evidence.
    #[track_caller]
    pub fn insecure() -> Arc<Self> {
        Self::of(|management| Manager::insecure(management, &[]))
    }

    #[track_caller]
    fn of(manager: impl FnOnce(&Management) -> Manager) -> Arc<Self> {
        let management = management();
        let manager = manager(&management);
        Arc::new(Self {
            management,
            manager,
        })
    }
}

/// One Cluster in a management cluster.
#[derive(Debug)]
pub struct Scene {
    /// The site of the Cluster.
    pub site: Arc<Site>,
    /// The Cluster.
    pub cluster: WorkloadCluster,
    /// The authentication settings for the Cluster's nodes.
    pub authentication: Authentication,
}

impl Scene {
    /// Creates a Cluster in a separate namespace. The controller manages the Cluster with these settings.
    #[track_caller]
    pub fn start(site: &Arc<Site>, namespace: &str, settings: Value) -> Self {
        let cluster = Self::unattended(site, namespace);
        Self::attend(site, cluster, settings)
    }

    /// Creates a Cluster in a separate namespace. The controller does not manage the Cluster yet.
    #[track_caller]
    pub fn unattended(site: &Arc<Site>, namespace: &str) -> WorkloadCluster {
        let builder = site.management.cluster("prod-1").namespace(namespace);
        let cluster = builder.controllers(Controllers::Default).create();
        if site.manager.has_own_access {
            access::give(&site.management, &cluster, Duration::ZERO);
            access::permit_null(&cluster);
        }
        cluster
    }

    /// Makes the controller manage this Cluster with these settings from now on.
    #[track_caller]
    pub fn attend(site: &Arc<Site>, cluster: WorkloadCluster, settings: Value) -> Self {
        Self::attend_by(site, cluster, "aws", settings)
    }

    /// Like [`attend`](Self::attend), but with this attestor instead of `aws`.
    #[track_caller]
    pub fn attend_by(
        site: &Arc<Site>,
        cluster: WorkloadCluster,
        attestor: &str,
        settings: Value,
    ) -> Self {
        let authentication = authorize(&site.management, &cluster, &[attestor], settings);
        authentication.wait_until_ready(site.management.kubectl());
        Self {
            site: site.clone(),
            cluster,
            authentication,
        }
    }

    /// kubectl on the management cluster.
    pub fn management(&self) -> &Kubectl {
        self.site.management.kubectl()
    }

    /// Changes the authentication settings for the Cluster's nodes.
    #[track_caller]
    pub fn change(&self, spec: &Value) {
        let Authentication { namespace, name } = &self.authentication;
        let target = ["kubeletauthentication", name, "--namespace", namespace];
        self.management().patch(&target, &json!({ "spec": spec }));
    }

    /// Waits until the condition about auto-approval paths has this status and reason for the current settings.
    /// Returns its message.
    #[track_caller]
    pub fn wait_for_paths(&self, status: &str, reason: &str, words: &[&str]) -> String {
        self.wait_for_condition("AutoApprovePathsClosed", status, reason, words)
    }

    /// Waits until this condition describes the current settings, and has this status, this reason and this text.
    /// Returns its message.
    #[track_caller]
    pub fn wait_for_condition(
        &self,
        condition: &str,
        status: &str,
        reason: &str,
        words: &[&str],
    ) -> String {
        let Authentication { namespace, name } = &self.authentication;
        let target = ["get", "kubeletauthentication", name, "-n", namespace];
        let mut last = Value::Null;
        let found = poll(SWEPT, || {
            let object = self.management().json(target);
            last = condition_of(&object, condition);
            let message = last["message"].as_str().unwrap_or_default();
            let is_new = last["observedGeneration"] == object["metadata"]["generation"];
            let is = is_new && last["status"] == status && last["reason"] == reason;
            (is && words.iter().all(|word| message.contains(word))).then(|| message.to_owned())
        });
        found.unwrap_or_else(|| panic!("{status} {reason} {words:?}: {last:#}"))
    }

    /// kubectl on the workload cluster.
    pub fn kubectl(&self) -> &Kubectl {
        self.cluster.control_plane().kubectl()
    }

    /// Creates a request with a rubber stamp for this cluster, for any node and machine.
    pub fn stamped(&self, node_name: &str, provider_id: &str) -> Application {
        let ca = self.cluster.control_plane().ca();
        Application::stamped(node_name, provider_id, ca.certificate_pem())
    }

    /// Creates a request for the machine's own node name and provider ID.
    pub fn rightful(&self, machine: &Machine) -> Application {
        self.stamped(machine.node_name(), machine.provider_id())
    }

    /// Creates the request with this kubeconfig. Returns its name.
    pub fn file(&self, kubeconfig: &Path, application: &Application) -> String {
        let plane = self.cluster.control_plane();
        let kubectl = plane.kubectl_with(kubeconfig);
        // `kubectl apply` would add an annotation to the request.
        kubectl.create_object(&application.to_json());
        application.name()
    }

    /// The request with this name.
    pub fn request(&self, name: &str) -> Value {
        self.kubectl()
            .json(["get", "certificatesigningrequests", name])
    }

    /// Waits until the request has an answer. Returns the request.
    #[track_caller]
    pub fn answer(&self, name: &str) -> Value {
        let what = format!("{name} with an answer");
        self.cluster.control_plane().wait_for_csr(&what, |csr| {
            csr["metadata"]["name"] == name && is_answered(csr)
        })
    }

    /// Waits until the request is denied, and asserts the reason.
    #[track_caller]
    pub fn assert_denied(&self, name: &str, reason: &str) {
        let csr = self.answer(name);
        assert_refused(&csr, ("Denied", reason));
    }

    /// Waits until this request is deferred for this reason. After the decision, an Event on the object of its Machine
    /// or pool contains the name of the request. The request remains open. Returns the Event.
    #[track_caller]
    pub fn assert_waits(&self, object: &str, name: &str, reason: &str) -> Value {
        let fields = format!("involvedObject.name={object},reason={reason}");
        let is_of = |event: &Value| event["related"]["name"] == name;
        let event = self.wait_for_event_with(reason, &fields, is_of);
        assert_unanswered(Later::event(&event), || self.request(name));
        event
    }

    /// Waits for an Event with this reason on the object with this name. Returns the Event.
    #[track_caller]
    pub fn wait_for_event(&self, object: &str, reason: &str) -> Value {
        self.wait_for_event_with(
            reason,
            &format!("involvedObject.name={object},reason={reason}"),
            |_| true,
        )
    }

    #[track_caller]
    fn wait_for_event_with(
        &self,
        reason: &str,
        fields: &str,
        wanted: impl Fn(&Value) -> bool,
    ) -> Value {
        let namespace = self.cluster.namespace();
        let events = [
            "events",
            "--namespace",
            namespace,
            "--field-selector",
            fields,
        ];
        self.management().wait_for(&events, reason, SWEPT, wanted)
    }

    /// Makes the machine join. Returns a kubeconfig with the request's certificate.
    #[track_caller]
    pub fn join(&self, machine: &Machine) -> PathBuf {
        self.join_by(&machine.bootstrap_kubeconfig(), &self.rightful(machine))
    }

    /// Like [`join`](Self::join), but with this kubeconfig and this request.
    #[track_caller]
    pub fn join_by(&self, kubeconfig: &Path, application: &Application) -> PathBuf {
        let name = self.file(kubeconfig, application);
        let csr = self.answer(&name);
        let certificate_pem = certificate_of(&csr).unwrap_or_else(|| panic!("{csr:#}"));
        let pair = KeyAndCertificate {
            certificate_pem,
            key_pem: application.key_pem().to_owned(),
        };
        let plane = self.cluster.control_plane();
        plane.kubeconfig(User::Certificate(pair))
    }

    /// The record for the node with this name.
    pub fn record(&self, node_name: &str) -> Value {
        let name = format!("{}.{node_name}", self.cluster.name());
        let namespace = self.cluster.namespace();
        let kubectl = self.management();
        kubectl.json(["get", "nodeidentities", &name, "--namespace", namespace])
    }

    /// Waits until the record satisfies `wanted`. Returns the record.
    #[track_caller]
    pub fn wait_for_record(&self, node_name: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let found = poll(SWEPT, || {
            Some(self.record(node_name)).filter(|record| wanted(record))
        });
        found.unwrap_or_else(|| panic!("{:#}", self.record(node_name)))
    }

    /// Waits until a write by this node is refused, and returns the message.
    #[track_caller]
    pub fn refused_write(&self, kubeconfig: &Path, node_name: &str) -> String {
        let plane = self.cluster.control_plane();
        let kubectl = plane.kubectl_with(kubeconfig);
        let mut written = 0;
        let refused = poll(SWEPT, || {
            written += 1;
            // A new value is used each time, because kubectl does not send a patch without changes.
            let label = format!("a.example/written={written}");
            let output = kubectl.run(["label", "node", node_name, "--overwrite", &label]);
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            said.contains("revoked").then_some(said)
        });
        refused.unwrap_or_else(|| panic!("{node_name} wrote {written} times, and may go on"))
    }
}
