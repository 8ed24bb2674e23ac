//! Tests of the Helm chart, with helm and a real API server.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::LazyLock;

use kubelet_authenticator_test_support::binaries;
use kubelet_authenticator_test_support::control_plane::DEADLINE;
use kubelet_authenticator_test_support::process::{Scratch, poll};
use kubelet_authenticator_tests::deploy::{
    NAME, NAMESPACE, components, deployment, kustomize, lead,
};
use kubelet_authenticator_tests::management::Management;
use kubelet_authenticator_tests::page::repository;
use serde_json::{Value, json};

pub static HELM: LazyLock<PathBuf> =
    LazyLock::new(|| binaries::build(&packaging().join("helm/build")).join("helm"));

fn packaging() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/chart")
}

fn chart() -> String {
    packaging().join(NAME).display().to_string()
}

/// Runs helm without the user's settings.
fn helm(arguments: &[&str]) -> Output {
    let home = Scratch::new("helm");
    let mut helm = Command::new(&*HELM);
    helm.args(arguments).env_clear().env("HOME", home.path());
    helm.output().expect("helm can be started")
}

/// The objects that helm would apply in this namespace with these values.
#[track_caller]
pub fn template(namespace: &str, values: &[&str]) -> String {
    let mut arguments = vec!["template", "--include-crds", "--namespace", namespace];
    arguments.extend(values.iter().flat_map(|value| ["--set-json", value]));
    let chart = chart();
    arguments.extend([NAME, &chart]);
    let output = helm(&arguments);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    String::from_utf8(output.stdout).unwrap()
}

/// The objects in manifests, keyed by kind, namespace and name.
pub fn objects(manifests: &str) -> BTreeMap<[String; 3], Value> {
    let documents = manifests.split("\n---\n");
    let objects = documents.filter_map(|document| {
        let object: Option<Value> = serde_saphyr::from_str(document).unwrap();
        let object = plain(object?);
        let of = |pointer| object.pointer(pointer).and_then(Value::as_str);
        let name = ["/kind", "/metadata/namespace", "/metadata/name"];
        let name = name.map(|pointer| of(pointer).unwrap_or_default().to_owned());
        Some((name, object))
    });
    objects.collect()
}

/// The value with all numbers in the same format, because `43200.0` and `43200` are equal for an API server.
fn plain(value: Value) -> Value {
    match value {
        Value::Number(number) => json!(number.as_f64()),
        Value::Array(values) => values.into_iter().map(plain).collect(),
        Value::Object(fields) => fields
            .into_iter()
            .map(|(name, value)| (name, plain(value)))
            .collect(),
        Value::Null | Value::Bool(_) | Value::String(_) => value,
    }
}

pub fn of_kind<'a>(objects: &'a BTreeMap<[String; 3], Value>, kind: &str) -> &'a Value {
    let mut found = objects.iter().filter(|([of, ..], _)| of == kind);
    let (_, object) = found
        .next()
        .unwrap_or_else(|| panic!("no {kind} in {:?}", objects.keys()));
    assert_eq!(found.next(), None);
    object
}

#[test]
fn the_chart_has_the_objects_of_the_manifests_except_the_namespace() {
    let mut expected = objects(&components());
    expected.extend(objects(&kustomize(&[], &packaging().join("../crds"))));
    let namespace = ["Namespace", "", NAMESPACE].map(str::to_owned);
    assert!(expected.remove(&namespace).is_some());
    let found = objects(&template(NAMESPACE, &[]));
    assert!(found.keys().eq(expected.keys()), "{:#?}", found.keys());
    for (name, object) in &expected {
        assert_eq!(&found[name], object, "{name:?}");
    }
}

#[test]
fn the_network_policy_allows_both_address_families_of_aws_credentials() {
    let manifests = objects(&components());
    let egress = &of_kind(&manifests, "NetworkPolicy")["spec"]["egress"];
    let credentials = egress.as_array().and_then(|rules| rules.last()).unwrap();
    assert_eq!(
        credentials["ports"],
        json!([{"port": 80.0, "protocol": "TCP"}])
    );
    let blocks = credentials["to"].as_array().unwrap().iter();
    let blocks: Vec<_> = blocks.map(|to| to["ipBlock"]["cidr"].as_str()).collect();
    // These are the addresses of the instance metadata service, and of the agent of EKS Pod Identity.
    for address in [
        "169.254.169.254/32",
        "169.254.170.23/32",
        "fd00:ec2::254/128",
        "fd00:ec2::23/128",
    ] {
        assert!(blocks.contains(&Some(address)), "{address}: {blocks:?}");
    }
}

#[test]
fn the_chart_passes_helm_lint_and_rejects_invalid_values() {
    let output = helm(&["lint", "--strict", &chart()]);
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{printed}");
    assert!(
        printed.contains("1 chart(s) linted, 0 chart(s) failed"),
        "{printed}"
    );
    for (value, reason) in [
        ("replica=3", "'replica'"),
        ("replicas=\"two\"", "/replicas"),
        ("logFormat=\"xml\"", "/logFormat"),
        ("shards=1", "'shards'"),
        ("image.digest=\"sha256:0\"", "/image/digest"),
        ("image.repository=\"a/b:v1\"", "/image/repository"),
        ("networkPolicy.ports=[]", "/networkPolicy/ports"),
        (
            "extraVolumeMounts=[{\"name\":\"signer\"}]",
            "/extraVolumeMounts/0",
        ),
        ("extraContainers=[{\"name\":\"a\"}]", "/extraContainers/0"),
        ("signer.module=\"softhsm\"", "/signer/module"),
        ("signer.enabled=true", "signer.caConfigMaps is missing"),
        (
            "serviceAccount.annotations={\"a\":1}",
            "/serviceAccount/annotations/a",
        ),
    ] {
        let output = helm(&["template", "--set-json", value, NAME, &chart()]);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{value} is taken");
        assert!(error.contains(reason), "{value}: {error}");
    }
}

#[test]
fn chart_values_appear_in_the_rendered_objects() {
    let values = [
        r#"image={"repository": "registry.example.com:5000/me/controller", "pullPolicy": "Always"}"#,
        r#"image.tag="v9""#,
        "imagePullSecrets=[{\"name\": \"registry\"}]",
        "replicas=3",
        r#"logFormat="text""#,
        "verbose=true",
        r#"watchFilter="mine""#,
        r#"watchNamespace="fleet""#,
        "maxClustersPerNamespace=500",
        r#"workloadAccess="prefer-own""#,
        "allowInsecure=true",
        r#"tpm.challengeKeysSecret="challenge-keys""#,
        r#"extraArgs=["--aws-sts-region=eu-west-1"]"#,
        r#"extraEnv=[{"name": "https_proxy", "value": "http://proxy.example:3128"}]"#,
        r#"resources.limits={"memory": "2Gi"}"#,
        r#"serviceAccount.annotations={"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/a"}"#,
        r#"podLabels={"team": "nodes", "app.kubernetes.io/name": "other"}"#,
        r#"nodeSelector={"node-role.kubernetes.io/control-plane": ""}"#,
        "tolerations=[]",
        r#"priorityClassName="""#,
        r#"networkPolicy={"metricsNamespace": "observability", "ports": [8443]}"#,
        "podDisruptionBudget.enabled=false",
        "flowSchemas.enabled=false",
        "ack.carm=true",
        r#"serviceMonitor={"enabled": true, "interval": "30s", "labels": {"release": "prometheus"}}"#,
        "prometheusRule.enabled=true",
    ];
    let found = objects(&template("attestation", &values));
    let deployment = of_kind(&found, "Deployment");
    assert_eq!(deployment["spec"]["replicas"], 3.0);
    let template = &deployment["spec"]["template"];
    let labels = json!({"app.kubernetes.io/name": NAME, "team": "nodes"});
    assert_eq!(template["metadata"]["labels"], labels);
    let pod = &template["spec"];
    let manager = &pod["containers"][0];
    assert_eq!(
        manager["image"],
        "registry.example.com:5000/me/controller:v9"
    );
    assert_eq!(manager["imagePullPolicy"], "Always");
    assert_eq!(
        manager["args"],
        json!([
            "run",
            "--log-format=text",
            "--metrics-bind-address=:8080",
            "--health-addr=:9440",
            "--verbose",
            "--watch-filter=mine",
            "--namespace=fleet",
            "--max-clusters-per-namespace=500",
            "--workload-access=prefer-own",
            "--allow-insecure",
            "--ack=carm",
            "--tpm-challenge-keys=/keys",
            "--aws-sts-region=eu-west-1",
        ])
    );
    assert_eq!(manager["env"][0]["name"], "https_proxy");
    let resources =
        json!({"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "2Gi"}});
    assert_eq!(manager["resources"], resources);
    assert_eq!(manager["volumeMounts"][0]["mountPath"], "/keys");
    assert_eq!(pod["volumes"][0]["secret"]["secretName"], "challenge-keys");
    assert_eq!(pod["imagePullSecrets"][0]["name"], "registry");
    let selector = json!({"node-role.kubernetes.io/control-plane": ""});
    assert_eq!(pod["nodeSelector"], selector);
    for absent in ["tolerations", "priorityClassName"] {
        assert_eq!(pod.get(absent), None);
    }
    let account = of_kind(&found, "ServiceAccount");
    let role = &account["metadata"]["annotations"]["eks.amazonaws.com/role-arn"];
    assert_eq!(role, "arn:aws:iam::1:role/a");
    let policy = &of_kind(&found, "NetworkPolicy")["spec"];
    let reader = &policy["ingress"][1]["from"][0]["namespaceSelector"]["matchLabels"];
    assert_eq!(reader["kubernetes.io/metadata.name"], "observability");
    let ports = json!([{"port": 8443.0, "protocol": "TCP"}]);
    assert_eq!(policy["egress"][1]["ports"], ports);
    let monitor = of_kind(&found, "ServiceMonitor");
    assert_eq!(monitor["metadata"]["labels"]["release"], "prometheus");
    assert_eq!(monitor["spec"]["endpoints"][0]["interval"], "30s");
    let service = of_kind(&found, "Service");
    let selected = &monitor["spec"]["selector"]["matchLabels"];
    assert_eq!(selected, &service["metadata"]["labels"]);
    let alerts = packaging().join("../monitoring/alerts.yaml");
    let alerts = std::fs::read_to_string(alerts).unwrap();
    let alerts = plain(serde_saphyr::from_str(&alerts).unwrap());
    assert_eq!(of_kind(&found, "PrometheusRule")["spec"], alerts);
    let kinds = ["PodDisruptionBudget", "FlowSchema"];
    assert!(!found.keys().any(|[kind, ..]| kinds.contains(&&**kind)));
    // No object is in the namespace from the manifests. Some objects are in the watched namespace and in the namespace
    // of AWS Controllers for Kubernetes.
    for [kind, namespace, name] in found.keys() {
        assert!(
            ["", "attestation", "fleet", "ack-system"].contains(&&**namespace),
            "{kind} {name} is in {namespace}"
        );
    }

    let digest = format!("sha256:{}", "0".repeat(64));
    let value = format!(r#"image.digest="{digest}""#);
    let found = objects(&self::template(NAMESPACE, &[&value]));
    let pod = &of_kind(&found, "Deployment")["spec"]["template"]["spec"];
    let image = format!("registry.example/{NAME}@{digest}");
    assert_eq!(pod["containers"][0]["image"], image);
}

/// The namespaces whose Secrets the controller can read. The empty namespace represents all namespaces.
pub fn readable_secrets(found: &BTreeMap<[String; 3], Value>) -> Vec<String> {
    let bindings = found
        .iter()
        .filter(|([kind, ..], _)| kind.ends_with("RoleBinding"));
    let reads = |(of, binding): (&[String; 3], &Value)| {
        let [_, namespace, _] = of;
        let of_role = |field: &str| binding["roleRef"][field].as_str().unwrap().to_owned();
        let (kind, name) = (of_role("kind"), of_role("name"));
        let place = if kind == "Role" {
            namespace.clone()
        } else {
            String::new()
        };
        let role = &found[&[kind, place, name]];
        let rules = role["rules"].as_array().unwrap();
        let has = |rule: &Value| {
            let resources = rule["resources"].as_array().unwrap();
            resources.contains(&json!("secrets"))
        };
        rules.iter().any(has).then(|| namespace.clone())
    };
    bindings.filter_map(reads).collect()
}

#[test]
fn a_controller_for_one_namespace_reads_only_its_secrets() {
    let of = |values: &[&str]| readable_secrets(&objects(&template(NAMESPACE, values)));
    let watched = r#"watchNamespace="fleet""#;

    assert_eq!(of(&[]), [""]);
    assert_eq!(of(&[watched]), ["fleet"]);
    let with_static = of(&[watched, "capa.staticIdentities=true"]);
    assert_eq!(with_static, ["capa-system", "fleet"]);
    assert_eq!(of(&["capa.staticIdentities=true"]), [""]);
}

/// Waits until the controller can list the Secrets in this namespace, and cannot list other Secrets. The API server
/// receives changes to permissions with a watch.
#[track_caller]
fn wait_until_only_secrets_can_be_read_in(management: &Management, own: &str, user: &str) {
    let user = format!("--as={user}");
    let list = |scope: &[&str]| {
        let words = [&["get", "secrets", user.as_str()][..], scope].concat();
        let listed = management.kubectl().run(words);
        let error = String::from_utf8_lossy(&listed.stderr);
        (listed.status.success(), error.contains("(Forbidden)"))
    };
    let is_confined = || {
        let is_refused = |scope: &[&str]| list(scope) == (false, true);
        let others = [&["-n", "kube-system"][..], &["--all-namespaces"]];
        let is_own = list(&["-n", own]) == (true, false);
        (is_own && others.into_iter().all(is_refused)).then_some(())
    };
    let confined = poll(DEADLINE, is_confined);
    assert!(confined.is_some(), "{user} never reads only {own}");
}

/// The command on a page that applies crds.yaml.
#[track_caller]
fn applying_resources(page: &str) -> String {
    let text = std::fs::read_to_string(repository().join("docs").join(page)).unwrap();
    let mut code = text.split('`');
    let command = code
        .find(|code| code.starts_with("kubectl apply ") && code.ends_with(" crds.yaml"))
        .unwrap_or_else(|| panic!("{page} has no command"));
    command.to_owned()
}

/// Applies the custom resources of a later version with the command of the pages. Helm owns the fields in the
/// definitions that the chart installed.
#[track_caller]
fn follow_the_pages_with_changed_resources(management: &Management, files: &Scratch) {
    let folder = packaging().join("../crds");
    let kubectl = management.kubectl();
    let mut names = Vec::new();
    let documents = kustomize(&[], &folder);
    let items = documents.split("\n---\n").map(|document| {
        let mut crd: Value = serde_saphyr::from_str(document).unwrap();
        let schema = &mut crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        schema["description"] = json!("changed");
        names.push(crd["metadata"]["name"].as_str().unwrap().to_owned());
        crd
    });
    let items: Vec<Value> = items.collect();
    let list = json!({"apiVersion": "v1", "kind": "List", "items": items});
    let file = files.write("crds.yaml", list.to_string());

    let command = applying_resources("install.md");
    assert_eq!(applying_resources("upgrade.md"), command);
    let command = command.replace("crds.yaml", file.to_str().unwrap());
    let words: Vec<&str> = command.split(' ').skip(1).collect();
    // Without `--force-conflicts`, kubectl changes fields that it owns, but not fields that Helm owns.
    let without = words.iter().filter(|word| **word != "--force-conflicts");
    let refused = kubectl.run(without);
    let error = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success(), "{command} needs no option");
    assert!(error.contains("with \"helm\""), "{error}");
    kubectl.ok(&words);
    for name in names {
        let crd = kubectl.json(["get", "crd", &name]);
        let schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        assert_eq!(schema["description"], "changed", "{name}");
    }
}

#[test]
fn a_packed_chart_installs_a_leading_controller_in_any_namespace() {
    let files = Scratch::new("chart");
    let version = env!("CARGO_PKG_VERSION");
    let packed = ["one", "two"].map(|folder| {
        let build = Command::new(packaging().join("build"))
            .arg(files.join(folder))
            .arg(version)
            .env("IMAGE", "registry.example.com/me/controller")
            .output()
            .unwrap();
        assert!(build.status.success(), "{build:?}");
        let file = files.join(folder).join(format!("{NAME}-{version}.tgz"));
        let printed = String::from_utf8_lossy(&build.stdout).into_owned();
        assert_eq!(printed.trim_end(), file.display().to_string());
        file
    });
    let [one, two] = packed.each_ref().map(|file| std::fs::read(file).unwrap());
    assert!(one == two, "the same source gives the same bytes");

    let namespace = "attestation";
    let management = Management::start();
    // Helm creates only the definitions that do not exist.
    let definitions = packaging().join("../crds");
    let definitions = definitions.to_str().unwrap();
    management.kubectl().ok(["delete", "-k", definitions]);
    management.kubectl().apply_object(&json!({
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": {"name": namespace, "labels": {"pod-security.kubernetes.io/enforce": "restricted"}},
    }));
    let kubeconfig = management.admin_kubeconfig().display().to_string();
    let on = ["--kubeconfig", &kubeconfig, "--namespace", namespace, NAME];
    let run = |command: &[&str], chart: &[&str]| {
        let output = helm(&[command, &on, chart].concat());
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{command:?}: {error}");
        assert_eq!(error, "", "{command:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let packed = packed[0].to_str().unwrap();
    let notes = run(&["install"], &[packed]);
    let next = format!("/blob/v{version}/docs/enable-cluster.md");
    assert!(notes.contains(&next), "{notes}");
    let installed = deployment(&management, namespace);
    let container = &installed["spec"]["template"]["spec"]["containers"][0];
    let image = format!("registry.example.com/me/controller:v{version}");
    assert_eq!(container["image"], image);
    let manager = lead(&management, namespace, &files);

    run(&["upgrade", "--set", "replicas=3"], &[packed]);
    let upgraded = deployment(&management, namespace);
    assert_eq!(upgraded["spec"]["replicas"], 3);
    follow_the_pages_with_changed_resources(&management, &files);
    drop(manager);
    run(&["upgrade", "--set", "watchNamespace=default"], &[packed]);
    let user = format!("system:serviceaccount:{namespace}:{NAME}");
    wait_until_only_secrets_can_be_read_in(&management, "default", &user);
    // The objects that belong to the clusters remain.
    run(&["uninstall"], &[]);
    let kubectl = management.kubectl();
    let left = kubectl.json(["get", "deployments,roles", "-n", namespace]);
    assert_eq!(left["items"], json!([]));
    kubectl.ok(["get", "kubeletauthentications,nodeidentities"]);
}
