//! Tests of external signers in the chart.

use kubelet_authenticator_tests::deploy::NAMESPACE;
use serde_json::json;

use crate::chart::{objects, of_kind, readable_secrets, template};

#[test]
fn an_external_signer_container_shares_a_socket_with_the_controller() {
    let mount = json!({"name": "signer", "mountPath": "/run/signer"});
    let volume = json!({"name": "signer", "emptyDir": {"medium": "Memory"}});
    let signer = json!({
        "name": "signer", "image": "registry.example/signer:v1", "volumeMounts": [mount],
        "args": ["--socket=/run/signer/signer.sock"],
    });
    let values = [
        format!("extraVolumes=[{volume}]"),
        format!("extraVolumeMounts=[{mount}]"),
        format!("extraContainers=[{signer}]"),
        r#"extraArgs=["--signer-endpoint=unix:///run/signer/signer.sock"]"#.to_owned(),
    ];
    let mut values: Vec<_> = values.iter().map(String::as_str).collect();
    let of = |values: &[&str]| {
        let found = objects(&template(NAMESPACE, values));
        of_kind(&found, "Deployment")["spec"]["template"]["spec"].clone()
    };

    let pod = of(&values);
    values.push(r#"tpm.challengeKeysSecret="challenge-keys""#);
    let with_keys = of(&values);

    let manager = &pod["containers"][0];
    let args = manager["args"].as_array().unwrap();
    assert_eq!(
        args.last().unwrap(),
        "--signer-endpoint=unix:///run/signer/signer.sock"
    );
    assert_eq!(manager["name"], of(&[])["containers"][0]["name"]);
    assert_eq!(manager["volumeMounts"], json!([mount]));
    assert_eq!(pod["volumes"], json!([volume]));
    assert_eq!(pod["containers"][1], signer);
    assert_eq!(pod["containers"].as_array().unwrap().len(), 2);
    let keys = json!({"name": "keys", "mountPath": "/keys", "readOnly": true});
    let manager = &with_keys["containers"][0];
    assert_eq!(manager["volumeMounts"], json!([keys, mount]));
    let keys = json!({"name": "keys", "secret": {"secretName": "challenge-keys"}});
    assert_eq!(with_keys["volumes"], json!([keys, volume]));
}

#[test]
fn the_signer_of_the_chart_has_its_socket_its_pin_and_its_cas() {
    let values = [
        r#"signer={"enabled": true, "module": "/opt/hsm.so", "tokenLabel": "clusters"}"#,
        r#"signer.pinSecret="pin""#,
        r#"signer.caConfigMaps=["cas", "more-cas"]"#,
        r#"signer.extraEnv=[{"name": "HSM_CONF", "value": "/etc/hsm"}]"#,
        "signer.kubeletServing=true",
    ];
    let found = objects(&template(NAMESPACE, &values));
    let pod = &of_kind(&found, "Deployment")["spec"]["template"]["spec"];
    let [manager, signer] = &pod["containers"].as_array().unwrap()[..] else {
        panic!("{pod:#}")
    };

    let endpoint = "--signer-endpoint=unix:///run/signer/signer.sock,kubelet-serving";
    let arguments = manager["args"].as_array().unwrap();
    assert!(arguments.contains(&json!(endpoint)), "{arguments:?}");
    let socket = json!({"name": "signer", "mountPath": "/run/signer"});
    assert_eq!(manager["volumeMounts"], json!([socket]));
    assert_eq!(
        signer["args"],
        json!([
            "--socket=/run/signer/signer.sock",
            "--module=/opt/hsm.so",
            "--token-label=clusters",
            "--pin-file=/etc/node-attestation-signer/secret/pin",
            "--cas=/etc/node-attestation-signer/cas",
        ])
    );
    // The controller has no access to the PIN.
    let folder = "/etc/node-attestation-signer";
    let mounts = json!([
        socket,
        {"name": "signer-pin", "mountPath": format!("{folder}/secret"), "readOnly": true},
        {"name": "signer-cas", "mountPath": format!("{folder}/cas"), "readOnly": true},
        // An empty directory is mounted instead of the controller's token.
        {
            "name": "signer-no-token", "readOnly": true,
            "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount",
        },
    ]);
    assert_eq!(signer["volumeMounts"], mounts);
    assert_eq!(signer["securityContext"], manager["securityContext"]);
    assert_eq!(signer["env"][0]["name"], "HSM_CONF");
    assert_eq!(pod["securityContext"]["fsGroup"], 65532.0);
    let [_, pin, cas, no_token] = &pod["volumes"].as_array().unwrap()[..] else {
        panic!("{pod:#}")
    };
    assert_eq!(
        *no_token,
        json!({"name": "signer-no-token", "emptyDir": {}})
    );
    assert_eq!(pin["secret"]["secretName"], "pin");
    assert_eq!(pin["secret"]["defaultMode"], 256.0);
    let sources = cas["projected"]["sources"].as_array().unwrap();
    let names: Vec<_> = sources
        .iter()
        .map(|one| &one["configMap"]["name"])
        .collect();
    assert_eq!(names, ["cas", "more-cas"]);
}

#[test]
fn the_image_the_resources_and_the_mounts_of_the_signer_are_values() {
    let required = [
        r#"signer={"enabled": true, "module": "/opt/hsm.so", "tokenLabel": "clusters"}"#,
        r#"signer.pinSecret="pin""#,
        r#"signer.caConfigMaps=["cas"]"#,
    ];
    let signer = |more: &[&str]| {
        let found = objects(&template(NAMESPACE, &[&required[..], more].concat()));
        let pod = &of_kind(&found, "Deployment")["spec"]["template"]["spec"];
        pod["containers"][1].clone()
    };
    let digest = format!("sha256:{}", "0".repeat(64));
    let image = format!(r#"signer.image.digest="{digest}""#);
    let mount = json!({"name": "hsm", "mountPath": "/opt/hsm"});
    let mounts = format!("signer.extraVolumeMounts=[{mount}]");

    let default = signer(&[]);
    let changed = signer(&[
        r#"signer.image.repository="registry.example.com:5000/me/signer""#,
        &image,
        r#"signer.image.pullPolicy="Always""#,
        r#"signer.resources.limits={"memory": "1Gi"}"#,
        &mounts,
    ]);
    let tagged = signer(&[r#"signer.image.tag="v9""#]);

    let name = "registry.example/node-attestation-signer-pkcs11";
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(default["image"], format!("{name}:v{version}"));
    assert_eq!(tagged["image"], format!("{name}:v9"));
    assert_eq!(default.get("imagePullPolicy"), None);
    assert_eq!(default["resources"]["limits"]["memory"], "256Mi");
    let image = format!("registry.example.com:5000/me/signer@{digest}");
    assert_eq!(changed["image"], image);
    assert_eq!(changed["imagePullPolicy"], "Always");
    assert_eq!(changed["resources"]["limits"]["memory"], "1Gi");
    let mounted = changed["volumeMounts"].as_array().unwrap();
    assert_eq!(mounted.last(), Some(&mount));
}

#[test]
fn a_controller_without_all_secrets_cannot_read_the_pin_of_the_signer() {
    let values = [
        r#"signer={"enabled": true, "module": "/opt/hsm.so", "tokenLabel": "clusters"}"#,
        r#"signer.pinSecret="pin""#,
        r#"signer.caConfigMaps=["cas"]"#,
    ];
    let readable = |more: &[&str]| {
        let manifests = template(NAMESPACE, &[&values[..], more].concat());
        readable_secrets(&objects(&manifests))
    };

    // By default, the controller can read all Secrets.
    assert_eq!(readable(&[]), [""]);
    assert_eq!(readable(&["allSecrets=false"]), [""; 0]);
}
