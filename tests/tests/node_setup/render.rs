//! Tests of the files that `render` prints.

use kubelet_authenticator::testing::Kubeconfig;
use kubelet_authenticator_test_support::api_server::{ApiServer, TOKEN};
use kubelet_authenticator_tests::node::{NULL, Node};
use kubelet_authenticator_tests::program;
use serde_json::{Value, json};

const PACKAGED: &str = "/usr/bin/kubelet-authenticator-null";

#[test]
fn a_drop_in_contains_the_path_of_the_plugin_on_the_node() {
    let server = ApiServer::start();
    let node = Node::new(NULL, &server);
    let state = node.state();
    let of = |path: &str| {
        format!(
            "[Unit]\nAfter=systemd-pcrosseparator.service systemd-pcrnvdone.service \
             systemd-pcrphase-sysinit.service systemd-pcrphase.service\n\
             RequiresMountsFor=/etc/kubernetes /var/lib/kubelet {}\n\n\
             [Service]\nTimeoutStartSec=90\nExecStartPre=-{path} setup\n\
             EnvironmentFile=-/etc/kubernetes/kubelet-authenticator/kubelet.env\n",
            state.display()
        )
    };

    let packaged = node.command(&["render", "kubelet-drop-in"]).succeeded();
    assert_eq!(packaged.stdout, of(PACKAGED));
    assert_eq!(packaged.stderr, "");

    let path = "/opt/bin/kubelet-authenticator-null";
    for words in [
        ["render", "--command", path, "kubelet-drop-in"],
        ["render", "kubelet-drop-in", "--command", path],
    ] {
        let given = node.command(&words).succeeded();
        assert_eq!(given.stdout, of(path));
        assert_eq!(given.stderr, "");
    }

    for path in [
        "plugin",
        "/opt/a plugin",
        "/opt/%n",
        "/opt/$HOME",
        "/opt/\\x20",
    ] {
        let refused = node.command(&["render", "--command", path, "kubelet-drop-in"]);
        refused
            .failed(2)
            .saying("is not an absolute path without systemd special characters");
    }
    let spaced = ["render", "--state-directory", "/a b", "kubelet-drop-in"];
    let refused = node.command(&spaced).failed(2);
    refused.saying(
        "--state-directory \"/a b\" is not an absolute path without systemd special characters",
    );
}

#[test]
fn each_rendered_file_has_the_given_or_the_packaged_path() {
    let server = ApiServer::start();
    let node = Node::new(NULL, &server);
    let path = "/opt/bin/plugin";
    let help = node.command(&["render", "--help"]).succeeded().stdout;
    let (_, list) = help.split_once("\nCommands:\n").unwrap();
    let lines = list.lines().take_while(|line| !line.is_empty());
    let names = lines.filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    let files: Vec<_> = names.filter(|name| !["", "help"].contains(name)).collect();
    assert!(files.len() >= 4, "{help}");
    for file in files {
        let packaged = node.command(&["render", file]).succeeded();
        assert!(packaged.stdout.contains(PACKAGED), "{}", packaged.stdout);
        let given = node.command(&["render", file, "--command", path]);
        let given = given.succeeded();
        assert!(given.stdout.contains(path), "{}", given.stdout);
        assert!(!given.stdout.contains(PACKAGED), "{}", given.stdout);
        let help = node.command(&["render", file, "--help"]).succeeded();
        assert!(help.stdout.contains("--command <FILE>"), "{}", help.stdout);
    }
}

#[test]
fn a_path_outside_of_usr_and_opt_gets_a_warning() {
    let server = ApiServer::start();
    let node = Node::new(NULL, &server);
    for path in [
        "/home/me/target/debug/plugin",
        "/usr/../tmp/plugin",
        "/opt/../../root/plugin",
        "/usrlocal/plugin",
    ] {
        let run = node.command(&["render", "kubeadm-config", "--command", path]);
        let warning = format!(
            "warning: unusual path of the plugin: {path} is not in /usr or /opt\n\
             hint: set --command to the path of the plugin on the nodes"
        );
        let run = run.succeeded();
        assert!(run.stderr.contains(&warning), "{}", run.stderr);
        assert!(run.stdout.contains(path), "{}", run.stdout);
    }
}

#[test]
fn a_rendered_kubeconfig_has_the_cluster_of_its_bootstrap_kubeconfig() {
    let server = ApiServer::start();
    let node = Node::new(NULL, &server);

    let own = program(NULL).display().to_string();
    let run = node.command(&["render", "kubeconfig", "--command", &own]);
    let run = run.succeeded();

    let path = node.scratch().write("kubelet.conf", &run.stdout);
    let command = Kubeconfig::read_exec_command(&path).unwrap();
    assert_eq!(command, Some(own));
    let endpoint = Kubeconfig::read_endpoint(&path).unwrap();
    assert_eq!(endpoint.server(), server.url());
    assert!(!run.stdout.contains(TOKEN));
}

#[test]
fn only_a_configuration_with_evidence_requests_serving_certificates() {
    let server = ApiServer::start();
    let spec = |plugin, words: &[&str]| -> Value {
        let node = Node::new(plugin, &server);
        let run = node.command(&[&["render", "kubeadm-config"], words].concat());
        let rendered: Value = serde_saphyr::from_str(&run.succeeded().stdout).unwrap();
        rendered["spec"]["template"]["spec"].clone()
    };
    let told = [
        "--provider-id-template",
        "{{ id }}",
        "--node-name-template",
        "{{ name }}",
    ];
    let serves = json!({"name": "rotate-server-certificates", "value": "true"});
    let is = json!({"name": "provider-id", "value": "{{ id }}"});

    let null = spec(NULL, &told);

    let registration = json!({"name": "{{ name }}", "kubeletExtraArgs": [serves, is]});
    assert_eq!(null["joinConfiguration"]["nodeRegistration"], registration);
    let settings = &null["files"][1];
    assert_eq!(
        settings["path"],
        "/etc/kubernetes/kubelet-authenticator/config.yaml"
    );
    let content: Value = serde_saphyr::from_str(settings["content"].as_str().unwrap()).unwrap();
    assert_eq!(content["providerID"], "{{ id }}");
    let insecure = spec("kubelet-authenticator-insecure", &told);
    let registration = json!({"name": "{{ name }}", "kubeletExtraArgs": [is]});
    assert_eq!(
        insecure["joinConfiguration"]["nodeRegistration"],
        registration
    );
    let bare = spec("kubelet-authenticator-insecure", &[]);
    assert_eq!(bare["joinConfiguration"], Value::Null);
    assert_eq!(bare["files"].as_array().unwrap().len(), 1);
}

#[test]
fn a_rendered_control_plane_waits_longer_for_its_certificate() {
    let server = ApiServer::start();
    let node = Node::new(NULL, &server);

    let run = node.command(&["render", "kubeadm-config", "--control-plane"]);

    let rendered: Value = serde_saphyr::from_str(&run.succeeded().stdout).unwrap();
    assert_eq!(rendered["kind"], "KubeadmControlPlaneTemplate");
    let spec = &rendered["spec"]["template"]["spec"]["kubeadmConfigSpec"];
    let join = json!({"timeouts": {"kubernetesAPICallSeconds": 600}});
    assert_eq!(spec["joinConfiguration"], join);
    assert_eq!(spec["files"].as_array().unwrap().len(), 1);
}

#[test]
fn a_cluster_class_gets_its_missing_lists_and_a_provider_variable() {
    let server = ApiServer::start();
    let node = Node::new(NULL, &server);
    let rendered = |words: &[&str]| -> Value {
        let run = node.command(&[&["render", "cluster-class"], words].concat());
        serde_saphyr::from_str(&run.succeeded().stdout).unwrap()
    };
    let paths = |rendered: &Value| -> Vec<String> {
        let patches = rendered["patches"][0]["definitions"][0]["jsonPatches"].as_array();
        let path = |patch: &Value| {
            patch["path"]
                .as_str()
                .unwrap()
                .replace("/spec/template/spec/", "")
        };
        patches.unwrap().iter().map(path).collect()
    };
    let arguments = "joinConfiguration/nodeRegistration/kubeletExtraArgs";

    let whole = rendered(&[]);

    assert_eq!(
        paths(&whole),
        ["files/-", "preKubeadmCommands/-", &format!("{arguments}/-")]
    );
    let patch = &whole["patches"][0];
    assert_eq!(patch["enabledIf"], "{{ .kubeletAuthentication.enabled }}");
    let selector = &patch["definitions"][0]["selector"];
    let workers = json!({"machineDeploymentClass": {"names": ["*"]}});
    assert_eq!(selector["matchResources"], workers);
    assert_eq!(selector["apiVersion"], "bootstrap.cluster.x-k8s.io/v1beta2");
    let schema = &whole["variables"][0]["schema"]["openAPIV3Schema"];
    let attestors = &schema["properties"]["authorizedAttestors"];
    assert_eq!(attestors["default"], json!(["null"]));
    for (words, expected) in [
        (&["--absent", "files"][..], "files"),
        (&["--absent", "preKubeadmCommands"], "preKubeadmCommands"),
        (&["--absent", "files,kubeletExtraArgs"], arguments),
        (
            &["--absent", "nodeRegistration"],
            "joinConfiguration/nodeRegistration",
        ),
        (&["--absent", "joinConfiguration"], "joinConfiguration"),
        (
            &["--api-version", "v1beta1"],
            &format!("{arguments}/rotate-server-certificates"),
        ),
    ] {
        let found = paths(&rendered(words));
        assert!(
            found.iter().any(|path| path == expected),
            "{words:?}: {found:?}"
        );
    }
    let templates = [
        "--node-name-template",
        "{{ name }}",
        "--provider-id-template",
        "{{ id }}",
    ];
    let told = rendered(&templates);
    let node_name = "joinConfiguration/nodeRegistration/name";
    let argument = format!("{arguments}/-");
    assert_eq!(
        paths(&told),
        [
            "files/-",
            "files/-",
            "preKubeadmCommands/-",
            &argument,
            &argument,
            node_name
        ]
    );
    let told = rendered(&[&templates[..], &["--absent", "joinConfiguration"]].concat());
    let patches = &told["patches"][0]["definitions"][0]["jsonPatches"];
    let registration = &patches[3]["value"]["nodeRegistration"];
    assert_eq!(registration["name"], "{{ name }}", "{patches:#}");
    let argument = json!({ "name": "provider-id", "value": "{{ id }}" });
    assert_eq!(registration["kubeletExtraArgs"][1], argument, "{patches:#}");
    let content = patches[1]["value"]["content"].as_str().unwrap();
    assert!(content.contains("{{ id }}"), "{content}");
    let pools = rendered(&["--machine-pools"]);
    let selector = &pools["patches"][0]["definitions"][0]["selector"];
    let pools = &selector["matchResources"]["machinePoolClass"];
    assert_eq!(*pools, json!({"names": ["*"]}));
    node.command(&["render", "cluster-class", "--absent", "spec"])
        .failed(2);
}

#[test]
fn a_class_patches_its_control_plane_only_with_the_option() {
    let server = ApiServer::start();
    let node = Node::new(NULL, &server);
    let rendered = |words: &[&str]| -> Value {
        let run = node.command(&[&["render", "cluster-class"], words].concat());
        serde_saphyr::from_str(&run.succeeded().stdout).unwrap()
    };
    let definitions = |rendered: &Value| rendered["patches"][0]["definitions"].clone();
    let base = "/spec/template/spec/kubeadmConfigSpec";
    let timeouts = format!("{base}/joinConfiguration/timeouts");

    let workers = definitions(&rendered(&[]));

    assert_eq!(workers.as_array().unwrap().len(), 1, "{workers:#}");
    let whole = rendered(&["--control-plane"]);
    let both = definitions(&whole);
    assert_eq!(both[0], workers[0]);
    let selector = json!({
        "apiVersion": "controlplane.cluster.x-k8s.io/v1beta2",
        "kind": "KubeadmControlPlaneTemplate",
        "matchResources": { "controlPlane": true },
    });
    assert_eq!(both[1]["selector"], selector);
    let drop_in = &workers[0]["jsonPatches"][0]["value"];
    let expected = json!([
        { "op": "add", "path": format!("{base}/files/-"), "value": drop_in },
        { "op": "add", "path": format!("{base}/preKubeadmCommands/-"), "value": "systemctl daemon-reload" },
        { "op": "add", "path": format!("{timeouts}/kubernetesAPICallSeconds"), "value": 600 },
    ]);
    assert_eq!(both[1]["jsonPatches"], expected);
    let description = &whole["variables"][0]["schema"]["openAPIV3Schema"]["properties"]["enabled"];
    let description = description["description"].as_str().unwrap();
    assert!(description.contains("all nodes"), "{description}");

    let absent = "files,timeouts";
    let words = ["--control-plane", "--control-plane-absent", absent];
    let patches = &definitions(&rendered(&words))[1]["jsonPatches"];
    assert_eq!(patches[0]["path"], format!("{base}/files"));
    assert_eq!(patches[0]["value"], json!([drop_in]));
    assert_eq!(patches[2]["path"], *timeouts);
    let seconds = json!({ "kubernetesAPICallSeconds": 600 });
    assert_eq!(patches[2]["value"], seconds);
    // The machine of `kubeadm init` has the same name as the machines that join.
    let words = ["--control-plane", "--node-name-template", "{{ name }}"];
    let named = &definitions(&rendered(&words))[1]["jsonPatches"];
    for (index, configuration) in [(2, "initConfiguration"), (3, "joinConfiguration")] {
        let path = format!("{base}/{configuration}/nodeRegistration/name");
        assert_eq!(named[index]["path"], path, "{named:#}");
        assert_eq!(named[index]["value"], "{{ name }}");
    }
    // The older API does not have timeouts.
    let words = ["--control-plane", "--api-version", "v1beta1"];
    let older = &definitions(&rendered(&words))[1];
    let version = &older["selector"]["apiVersion"];
    assert_eq!(version, "controlplane.cluster.x-k8s.io/v1beta1");
    assert_eq!(older["jsonPatches"].as_array().unwrap().len(), 2);
    let words = ["render", "cluster-class", "--control-plane-absent", "files"];
    node.command(&words).failed(2).saying("--control-plane");
}

/// The template for node names on EC2.
const EC2_NAME: &str = r#"{{ ds.meta_data.local_hostname.split(".")[0] }}.{{ "ec2" if v1.region == "us-east-1" else v1.region ~ ".compute" }}.internal"#;

#[test]
fn a_rendered_node_name_comes_from_ec2_unless_ignition_is_used() {
    let server = ApiServer::start();
    let node = Node::new("kubelet-authenticator-aws", &server);
    let rendered = |words: &[&str]| -> Value {
        let run = node.command(&[&["render"], words].concat());
        serde_saphyr::from_str(&run.succeeded().stdout).unwrap()
    };
    let given = ["--node-name-template", "{{ v1.instance_id }}"];
    for (words, expected) in [
        (&[][..], Some(EC2_NAME)),
        (&["--format", "ignition"], None),
        (&given, Some(given[1])),
    ] {
        let rendered = rendered(&[&["kubeadm-config"], words].concat());
        let join = &rendered["spec"]["template"]["spec"]["joinConfiguration"];
        let name = join["nodeRegistration"]["name"].as_str();
        assert_eq!(name, expected, "{words:?}");
    }
    let class = rendered(&["cluster-class"]);
    let patches = class["patches"][0]["definitions"][0]["jsonPatches"].as_array();
    let mut patches = patches.unwrap().iter();
    let name = "/spec/template/spec/joinConfiguration/nodeRegistration/name";
    let name = patches.find(|patch| patch["path"] == name).unwrap();
    assert_eq!(name["value"], EC2_NAME);
}
