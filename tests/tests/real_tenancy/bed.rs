//! The management cluster, its controller, and tenants.

use std::sync::LazyLock;
use std::time::Duration;

use kubelet_attestation::names::{Audience, Provider};
use kubelet_authenticator_test_support::control_plane::{ControlPlane, Controllers};
use kubelet_authenticator_test_support::moto::{Network, access_key};
use kubelet_authenticator_test_support::process::poll;
use kubelet_authenticator_tests::absence::{Later, assert_unanswered};
use kubelet_authenticator_tests::cloud::{ACCOUNT, CONTROLLER, Cloud, Instance};
use kubelet_authenticator_tests::controller::{Application, is_answered, reason_of};
use kubelet_authenticator_tests::fleet::{Authentication, Manager, authorize, condition_of, grant};
use kubelet_authenticator_tests::management::{
    Contract, InfraCluster, Management, WorkloadCluster, network, owned,
};
use kubelet_authenticator_tests::scrape::Diagnostics;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use serde_json::{Map, Value, json};

pub const STATIC_IDENTITY: &str = "AWSClusterStaticIdentity";
pub const ROLE_IDENTITY: &str = "AWSClusterRoleIdentity";
pub const CONTROLLER_IDENTITY: &str = "AWSClusterControllerIdentity";

const IDENTITY_VERSION: &str = "infrastructure.cluster.x-k8s.io/v1beta2";
/// The account that is mapped to a role in the ConfigMap for accounts, and the role's external ID.
pub const ACK_ACCOUNT: &str = "200000000011";
pub const EXTERNAL_ID: &str = "7a5b816a-7743-4377-a382-2d695bf1f172";

/// The teams, each with the account that contains its role `nodes`.
const TEAMS: [(&str, &str); 2] = [("team-a", "200000000004"), ("team-b", "200000000104")];

pub const PATIENCE: Duration = Duration::from_secs(240);

/// The permissions that the controller needs in addition to those in every management cluster.
const ACK_RBAC: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../packaging/rbac/ack.yaml");

const TOKENS_RBAC: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../packaging/rbac/service-account-identities.yaml"
);

pub struct Site {
    pub cloud: Cloud,
    pub network: Network,
    pub management: Management,
    pub manager: Manager,
    pub diagnostics: Diagnostics,
}

pub static SITE: LazyLock<Site> = LazyLock::new(|| {
    let cloud = Cloud::start();
    let management = Management::on(control_plane(), Contract::V1Beta2);
    management.define_aws();
    let own = json!({"allowedNamespaces": {"list": ["by-role", "explained"]}});
    management
        .kubectl()
        .apply_object(&identity_of(CONTROLLER_IDENTITY, "default", &own));
    grant(&management);
    for namespace in ["capa-system", "ack-system"] {
        create_namespace(&management, namespace, &json!({}));
    }
    management.kubectl().ok(["apply", "-f", ACK_RBAC]);
    management.kubectl().ok(["apply", "-f", TOKENS_RBAC]);
    let teams = TEAMS.map(|(team, account)| (team.to_owned(), json!(role(account, "nodes"))));
    let account = format!(
        "roleArn: {}\nexternalID: {EXTERNAL_ID}\n",
        role(ACK_ACCOUNT, "nodes")
    );
    for (map, data) in [
        ("team", Map::from_iter(teams)),
        (
            "account",
            Map::from_iter([(ACK_ACCOUNT.to_owned(), json!(account))]),
        ),
    ] {
        management.kubectl().apply_object(&json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": format!("ack-role-{map}-map"), "namespace": "ack-system"},
            "data": data,
        }));
    }
    let diagnostics = Diagnostics::default();
    let [metrics, health] = diagnostics.arguments();
    let arguments = ["--ack", "carm", &metrics, &health];
    Site {
        diagnostics,
        network: network(&cloud),
        manager: Manager::aws_without_fallback(&management, &cloud, &arguments),
        cloud,
        management,
    }
});

/// An API server that aggregates the ClusterRole `admin`.
pub fn control_plane() -> ControlPlane {
    let builder = ControlPlane::builder().controllers(Controllers::Certificates);
    let builder =
        builder.controller_manager_arg("--controllers=clusterrole-aggregation-controller");
    builder.start()
}

pub fn create_namespace(management: &Management, name: &str, annotations: &Value) {
    management.kubectl().apply_object(&json!({
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": {"name": name, "annotations": annotations},
    }));
}

pub fn apply(object: &Value) {
    SITE.management.kubectl().apply_object(object);
}

pub fn identity(kind: &str, name: &str, spec: &Value) {
    apply(&identity_of(kind, name, spec));
}

pub fn identity_of(kind: &str, name: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": IDENTITY_VERSION, "kind": kind,
        "metadata": {"name": name}, "spec": spec,
    })
}

pub fn role(account: &str, name: &str) -> String {
    format!("arn:aws:iam::{account}:role/{name}")
}

/// The controller's own principal.
pub fn controller() -> String {
    format!("arn:aws:iam::{ACCOUNT}:user/{CONTROLLER}")
}

/// A cluster, and the owner of its namespace.
pub struct Tenant {
    pub cluster: WorkloadCluster,
    pub authentication: Authentication,
}

impl Tenant {
    /// Creates a cluster of Cluster API Provider AWS with this identity, in a namespace with the same name.
    pub fn of_provider(name: &str, kind: &str, identity: &str) -> Self {
        Self::of_provider_in(name, name, kind, identity)
    }

    /// Like [`of_provider`](Self::of_provider), but in this namespace.
    pub fn of_provider_in(namespace: &str, name: &str, kind: &str, identity: &str) -> Self {
        let cluster = SITE.management.cluster(name).namespace(namespace);
        let cluster = cluster
            .infrastructure(InfraCluster::Aws(SITE.network.clone()))
            .create();
        let patch = json!({"spec": {"identityRef": {"kind": kind, "name": identity}}});
        SITE.management
            .kubectl()
            .patch(&["awsclusters", name, "-n", namespace], &patch);
        Self::authorized(cluster, json!({}))
    }

    /// Creates a cluster of Cluster API Provider AWS in a separate account, with an access key.
    pub fn with_access_key(name: &str, account: &str) -> Self {
        static_identity(name, account);
        Self::of_provider(name, STATIC_IDENTITY, name)
    }

    /// Creates a cluster of another infrastructure provider.
    pub fn of_another_provider(name: &str) -> Self {
        let cluster = SITE.management.cluster(name).namespace(name).create();
        Self::authorized(cluster, json!({}))
    }

    pub fn authorized(cluster: WorkloadCluster, spec: Value) -> Self {
        let authentication = authorize(&SITE.management, &cluster, &["aws"], spec);
        Self {
            cluster,
            authentication,
        }
    }

    /// Waits until the condition has this reason, and returns its message.
    pub fn resolved(&self, status: &str, reason: &str) -> String {
        self.condition("AWSIdentityResolved", status, reason)
    }

    /// Waits until this condition has this reason, and returns its message.
    pub fn condition(&self, of: &str, status: &str, reason: &str) -> String {
        self.condition_with(of, status, reason, "")
    }

    fn condition_with(&self, of: &str, status: &str, reason: &str, part: &str) -> String {
        let found = poll(PATIENCE, || {
            let condition = condition_of(&self.looked_at(), of);
            let message = condition["message"].as_str()?.to_owned();
            let is_it = condition["status"] == status && condition["reason"] == reason;
            (is_it && message.contains(part)).then_some(message)
        });
        found.unwrap_or_else(|| {
            let status = &self.looked_at()["status"];
            panic!("no {of}={status} {reason} {part}: {status:#}");
        })
    }

    /// Adds an annotation to the KubeletAuthentication, which triggers the check that the controller otherwise makes
    /// every minute. Returns the KubeletAuthentication as it was before the annotation.
    pub fn looked_at(&self) -> Value {
        let Authentication { namespace, name } = &self.authentication;
        let kubectl = SITE.management.kubectl();
        let target = ["kubeletauthentications", name, "-n", namespace];
        let found = kubectl.json(["get"].into_iter().chain(target));
        let version = &found["metadata"]["resourceVersion"];
        let annotation = json!({"metadata": {"annotations": {"a.example/seen": version}}});
        kubectl.patch(&target, &annotation);
        found
    }

    /// Changes the KubeletAuthentication, and waits until the condition for its new generation has this reason. At that
    /// time, the controller has read all earlier writes.
    pub fn is_still(&self, status: &str, reason: &str) {
        let resolved = "AWSIdentityResolved";
        let object = self
            .authentication
            .touch(SITE.management.kubectl(), resolved);
        let condition = condition_of(&object, resolved);
        assert_eq!(condition["status"], status, "{condition:#}");
        assert_eq!(condition["reason"], reason, "{condition:#}");
    }

    pub fn launch(&self, account: &str) -> Instance {
        let tag = owned(self.cluster.name());
        SITE.cloud.launch_in(account, &[(&tag, "owned")])
    }

    /// Creates a Machine in the cluster for this instance, sends the request as the Machine, and returns the name of
    /// the request.
    pub fn asks(&self, machine: &str, instance: &Instance) -> String {
        self.files(machine, instance, &self.audience())
    }

    /// The cluster for which evidence is valid.
    pub fn audience(&self) -> Audience {
        let ca = self.cluster.control_plane().ca();
        let ca = ca.certificate_pem().as_bytes();
        Audience::of_ca(&CertificateDer::from_pem_slice(ca).unwrap())
    }

    /// Like [`asks`](Self::asks), but with evidence for this audience.
    pub fn files(&self, machine: &str, instance: &Instance, audience: &Audience) -> String {
        let id = instance.provider_id();
        let machine = self.cluster.machine(machine).provider_id(&id);
        let machine = machine.node_name(instance.node_name()).create();
        let plane = self.cluster.control_plane();
        let parts = instance.parts(audience, &id, SITE.cloud.sts().now());
        let evidence = |spki: &[u8]| Some(SITE.cloud.evidence(&parts, spki));
        let application = Application::proving(instance.node_name(), &id, Provider::AWS, evidence);
        let kubectl = plane.kubectl_with(machine.bootstrap_kubeconfig());
        kubectl.create_object(&application.to_json());
        application.name().to_owned()
    }

    pub fn answered(&self, request: &str) -> Value {
        let plane = self.cluster.control_plane();
        plane.wait_for_csr("the answer", |csr| {
            csr["metadata"]["name"] == request && is_answered(csr)
        })
    }

    #[track_caller]
    pub fn joins(&self, machine: &str, instance: &Instance) {
        self.is_approved(&self.asks(machine, instance));
    }

    #[track_caller]
    pub fn is_denied(&self, machine: &str, instance: &Instance) -> String {
        self.is_refused(&self.asks(machine, instance))
    }

    /// Waits until the request is denied, and returns the reason.
    #[track_caller]
    pub fn is_refused(&self, request: &str) -> String {
        let csr = self.answered(request);
        reason_of(&csr, "Denied")
            .unwrap_or_else(|| panic!("{csr:#}"))
            .to_owned()
    }

    /// Waits until the controller has deferred the request for a reason that contains this text. Asserts that the
    /// request has no answer.
    #[track_caller]
    pub fn waits(&self, request: &str, why: &str) {
        self.waits_with(&SITE.manager, request, why);
    }

    /// Like [`waits`](Self::waits), but with this controller.
    #[track_caller]
    pub fn waits_with(&self, manager: &Manager, request: &str, why: &str) {
        let is_deferred = |line: &Value| {
            let detail = line["detail"].as_str();
            line["csr"] == *request
                && line["outcome"] == "deferred"
                && detail.is_some_and(|detail| detail.contains(why))
        };
        let decided = || {
            let lines = decisions(manager);
            lines.into_iter().find(is_deferred)
        };
        let Some(decision) = poll(PATIENCE, decided) else {
            let lines = decisions(manager).into_iter();
            let of_request: Vec<_> = lines.filter(|line| line["csr"] == *request).collect();
            panic!("{request} does not wait for {why:?}: {of_request:#?}");
        };
        assert_unanswered(Later::decision(&decision), || {
            let mut csrs = self.cluster.control_plane().csrs().into_iter();
            csrs.find(|csr| csr["metadata"]["name"] == *request)
                .unwrap()
        });
    }

    /// Waits until the request is approved.
    #[track_caller]
    pub fn is_approved(&self, request: &str) {
        let csr = self.answered(request);
        assert_eq!(
            reason_of(&csr, "Approved"),
            Some("NodeNameClaimed"),
            "{csr:#}"
        );
    }

    /// The account that the controller has recorded.
    pub fn account(&self) -> String {
        let Authentication { namespace, name } = &self.authentication;
        let words = ["get", "kubeletauthentications", name, "-n", namespace];
        let account = poll(PATIENCE, || {
            let object = SITE.management.kubectl().json(words);
            let annotations = &object["metadata"]["annotations"];
            annotations["attestation.cluster.x-k8s.io/aws-account"]
                .as_str()
                .map(ToOwned::to_owned)
        });
        account.expect("no account is recorded")
    }
}

/// The fields of the log lines about a controller's decisions.
fn decisions(manager: &Manager) -> Vec<Value> {
    let log = manager.process.log().text();
    let lines = log.lines();
    let lines = lines.filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let fields = lines.map(|mut line| line["fields"].take());
    fields
        .filter(|fields| fields["message"] == "decided")
        .collect()
}

/// Creates an access key in the provider's namespace, and an identity with this key that every namespace is allowed to
/// use.
pub fn static_identity(name: &str, account: &str) {
    apply(&secret("capa-system", name, account));
    let spec = json!({"secretRef": name, "allowedNamespaces": {}});
    identity(STATIC_IDENTITY, name, &spec);
}

/// A Secret with an access key for the account.
pub fn secret(namespace: &str, name: &str, account: &str) -> Value {
    SITE.cloud.learn(account, name);
    let (id, secret) = access_key(account);
    secret_of(namespace, name, (&id, &secret))
}

/// A Secret with this access key.
pub fn secret_of(namespace: &str, name: &str, (id, secret): (&str, &str)) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": name, "namespace": namespace},
        "stringData": {"AccessKeyID": id, "SecretAccessKey": secret},
    })
}

/// The outcomes of the STS calls whose bodies contain this text.
pub fn outcomes_with(text: &str) -> Vec<String> {
    let calls = SITE.cloud.sts().calls().into_iter();
    let calls = calls.filter(|call| call.body.contains(text));
    calls.map(|call| call.outcome).collect()
}
