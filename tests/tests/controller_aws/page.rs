//! Checks each row of the failures section in docs/aws.md with the real programs.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;

use kubelet_authenticator_test_support::imds::{Fault as Metadata, Profile, Route};
use kubelet_authenticator_test_support::moto::{Field, Moto, access_key};
use kubelet_authenticator_test_support::sts::{Fault, Principal, Times};
use kubelet_authenticator_tests::cloud::{ACCOUNT, REGION};
use kubelet_authenticator_tests::controller::reason_of;
use kubelet_authenticator_tests::page::commands;
use serde_json::{Value, json};

use crate::world::World;

/// The rows in the section, each as its first cell and its remaining cells.
fn rows() -> Vec<(String, String)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/aws.md");
    let page = fs::read_to_string(path).unwrap();
    let (_, section) = page.split_once("## Troubleshoot").unwrap();
    let rows = section.lines().filter_map(|line| {
        let (first, rest) = line.strip_prefix("| ")?.split_once(" | ")?;
        Some((first.to_owned(), rest.trim_end_matches(" |").to_owned()))
    });
    rows.collect()
}

/// The words between backticks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

type Case = fn() -> World;

/// Each exit code, with words from the node's message and a case that causes the message.
const CODES: [(i32, &str, Case); 6] = [
    (5, "hop limit", || {
        let mut world = World::start();
        world.node.set("timeLimit", "3");
        world
            .instance
            .imds
            .inject(Route::token(), Times::always(), Metadata::Hang);
        world
    }),
    (7, "not a CMS message", || {
        let world = World::start();
        let body = Metadata::Body(b"PGh0bWw+".to_vec());
        world
            .instance
            .imds
            .inject(Route::rsa2048(), Times::always(), body);
        world
    }),
    (11, "", || {
        let mut world = World::start();
        world.node.set("timeLimit", "5");
        world
            .cloud
            .sts()
            .inject(Times::always(), Fault::throttling());
        world
    }),
    (12, "NodeNameMismatch", || {
        let mut world = World::start();
        world.node.set("aws.nodeName", "instanceID");
        world.node.set("nodeName", &world.instance.ec2.id);
        world
    }),
    (13, "EvidenceExpired", || {
        let world = World::start();
        world.expire_credentials();
        world
    }),
    (15, "--hostname-override", || {
        let mut world = World::start();
        world.node.set("nodeName", "another");
        world
    }),
];

/// Each reason in the section, with the case in its row.
const REASONS: [(&str, Case); 7] = [
    ("CallerRefused", || {
        let mut world = World::start();
        world
            .node
            .set("aws.stsEndpoint", "sts-fips.eu-west-1.amazonaws.com");
        world
    }),
    ("CallerRoleNotAllowed", || {
        let mut world = World::start();
        let id = world.instance.ec2.id.clone();
        let principal = Principal::instance_profile(ACCOUNT, "nodes", &id);
        let given = world.give(principal);
        let profile = Profile {
            role: "nodes".to_owned(),
            credentials: given,
        };
        world
            .instance
            .imds
            .update(|metadata| metadata.profile = Some(profile));
        world.node.set("aws.principal", "instanceProfile");
        world
    }),
    ("AccountNotAllowed", || {
        World::with(|_, _, setup| setup.spec(&json!({"aws": {"accounts": ["444455556666"]}})))
    }),
    ("RegionNotAllowed", || {
        World::with(|_, _, setup| setup.spec(&json!({"aws": {"regions": ["eu-west-2"]}})))
    }),
    ("InstanceNotFound", || {
        let (key, _) = access_key("444455556666");
        World::with(|_, _, setup| setup.env("AWS_ACCESS_KEY_ID", &key))
    }),
    ("TagMismatch", || {
        World::with(|_, _, setup| setup.spec(&json!({"aws": {"requiredTags": {"team": "a"}}})))
    }),
    ("RootVolumeMoved", || {
        World::with(|cloud, instance, setup| {
            let long_ago = "2026-01-01T00:00:00.000Z";
            let moto = cloud.moto();
            moto.amend(&instance.ec2.id, Field::RootAttached, long_ago);
            setup
        })
    }),
];

#[test]
fn the_plugin_exits_with_every_documented_code() {
    let rows = rows();
    let of_page: BTreeSet<i32> = rows
        .iter()
        .filter_map(|(code, _)| code.parse().ok())
        .collect();
    let tried: BTreeSet<i32> = CODES.iter().map(|(code, ..)| *code).collect();
    assert_eq!(of_page, tried);

    thread::scope(|scope| {
        for (code, words, case) in &CODES {
            let row = rows.iter().find(|(first, _)| *first == code.to_string());
            let (_, meaning) = row.unwrap();
            scope.spawn(move || {
                let world = case();
                let run = world.run().failed(*code).saying(words);
                // The node itself reports this reason, without the controller.
                for reason in quoted(meaning).filter(|reason| *reason == "EvidenceExpired") {
                    assert!(run.stderr.contains(reason), "{run:#?}");
                }
                if *code == 11 {
                    let csr = &world.bed.server.csrs()[0];
                    assert!(csr["status"]["conditions"].is_null(), "{csr:#}");
                }
            });
        }
    });
}

#[test]
fn every_documented_denial_reason_occurs() {
    let rows = rows();
    let of_page: BTreeSet<&str> = rows.iter().flat_map(|(first, _)| quoted(first)).collect();
    let tried: BTreeSet<&str> = REASONS.iter().map(|(reason, _)| *reason).collect();
    assert_eq!(of_page, tried);

    thread::scope(|scope| {
        for (reason, case) in &REASONS {
            scope.spawn(move || {
                let world = case();
                world.run().failed(12).saying(reason);
                let csr = &world.bed.server.csrs()[0];
                assert_eq!(reason_of(csr, "Denied"), Some(*reason), "{csr:#}");
            });
        }
    });
}

#[test]
fn every_name_in_a_row_of_the_aws_page_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let pages = [
        "docs/reasons.md",
        "docs/settings.md",
        "docs/node-evidence.md",
        "docs/aws.md",
        "docs/aws-reference.md",
    ];
    let known = pages.map(|page| fs::read_to_string(root.join(page)).unwrap());
    let known = known.concat();
    for (_, meaning) in rows() {
        let is_name = |text: &&str| text.bytes().all(|b| b.is_ascii_alphanumeric());
        for name in quoted(&meaning).filter(is_name) {
            // The pages must contain the name a second time, in a description outside this column.
            assert!(known.matches(name).count() > 1, "{name}");
        }
    }
}

/// The block on the page in this language that contains these words.
fn block(language: &str, words: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/aws.md");
    let page = fs::read_to_string(path).unwrap();
    let fence = format!("```{language}\n");
    let blocks = page.split(&fence).skip(1);
    let mut blocks = blocks.filter_map(|rest| Some(rest.split_once("```")?.0));
    blocks
        .find(|block| block.contains(words))
        .unwrap()
        .to_owned()
}

/// Whether a Sigma detection matches an event: each field in the detection has the same value in the event.
fn sigma_matches(detection: &Value, event: &Value) -> bool {
    let mut fields = detection.as_object().unwrap().iter();
    fields.all(|(field, expected)| {
        let (name, modifier) = field.split_once('|').unwrap_or((field.as_str(), ""));
        let expected = expected.as_str().unwrap();
        event[name].as_str().is_some_and(|found| match modifier {
            "" => found == expected,
            "startswith" => found.starts_with(expected),
            other => panic!("the test does not know the modifier {other}"),
        })
    })
}

/// The results of the Python function on the page for these events.
fn panther_matches(events: &[Value]) -> Vec<bool> {
    let function = block("python", "def is_node_attestation(event):");
    let script = format!(
        "{function}\nimport json, sys\n\
         print(json.dumps([is_node_attestation(event) for event in json.loads(sys.argv[1])]))\n"
    );
    let events = Value::from(events).to_string();
    let output = Command::new("python3")
        .args(["-c", &script, &events])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn the_documented_cloudtrail_filters_match_only_calls_of_the_controller() {
    let arn = "arn:aws:sts::111122223333:assumed-role/aws:ec2-instance/i-0123456789abcdef0";
    let event = json!({
        "eventSource": "sts.amazonaws.com",
        "eventName": "GetCallerIdentity",
        "userAgent": concat!("node-attestation-controller/", env!("CARGO_PKG_VERSION")),
        "sourceIPAddress": "203.0.113.10",
        "userIdentity": {"type": "AssumedRole", "arn": arn},
    });
    let mut events = vec![event.clone()];
    for (field, other) in [
        ("eventSource", "ec2.amazonaws.com"),
        ("eventName", "AssumeRole"),
        ("userAgent", "aws-cli/2.0 node-attestation-controller/0.1.0"),
        ("sourceIPAddress", "203.0.113.11"),
    ] {
        let mut changed = event.clone();
        changed[field] = other.into();
        let mut without = event.clone();
        without.as_object_mut().unwrap().remove(field).unwrap();
        events.extend([changed, without]);
    }
    let filter = "filter_node_attestation";
    let sigma: Value = serde_saphyr::from_str(&block("yaml", &format!("{filter}:"))).unwrap();

    let matched: Vec<bool> = events
        .iter()
        .map(|event| sigma_matches(&sigma[filter], event))
        .collect();

    let mut expected = vec![false; events.len()];
    expected[0] = true;
    assert_eq!(matched, expected);
    assert_eq!(panther_matches(&events), expected);
}

#[test]
fn the_documented_suppression_rule_archives_only_calls_of_the_controller() {
    let moto = Moto::start();
    let aws = |script: &str| -> Value {
        let output = moto.shell(ACCOUNT, REGION, script);
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let detector = aws("aws guardduty create-detector --enable true");
    let detector = detector["DetectorId"].as_str().unwrap();
    let mut commands = commands("aws.md", '$').into_iter();
    let command = commands.find(|it| it.starts_with("aws ")).unwrap();

    aws(&command.replace("DETECTOR", detector));

    let name = "--filter-name node-attestation";
    let filter = aws(&format!(
        "aws guardduty get-filter --detector-id {detector} {name}"
    ));
    assert_eq!(filter["Action"], "ARCHIVE");
    let call = "service.action.awsApiCallAction";
    let findings = ["InsideAWS", "OutsideAWS"]
        .map(|place| format!("UnauthorizedAccess:IAMUser/InstanceCredentialExfiltration.{place}"));
    let expected = json!({
        "type": {"Equals": findings},
        format!("{call}.api"): {"Equals": ["GetCallerIdentity"]},
        format!("{call}.remoteIpDetails.ipAddressV4"): {"Equals": ["203.0.113.10"]},
    });
    assert_eq!(filter["FindingCriteria"]["Criterion"], expected);
    let wrong = command.replace("--action ", "--actions ");
    assert!(!moto.shell(ACCOUNT, REGION, &wrong).status.success());
}
