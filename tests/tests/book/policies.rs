//! The IAM policies on the pages.

use serde_json::Value;

use crate::pages;

/// The actions of a statement.
fn actions(statement: &Value) -> Vec<&str> {
    let action = &statement["Action"];
    let several = action.as_array().into_iter().flatten();
    let several = several.filter_map(Value::as_str);
    several.chain(action.as_str()).collect()
}

#[test]
fn every_documented_policy_that_allows_a_role_also_allows_its_tags() {
    let pages = pages();
    let mut count = 0;
    for (path, text) in &pages {
        let blocks = text.split("```json\n").skip(1);
        for block in blocks.map(|block| block.split_once("```").unwrap().0) {
            if !block.contains("\"Statement\"") {
                continue;
            }
            let policy: Value = serde_json::from_str(block)
                .unwrap_or_else(|error| panic!("{path}: {error}: {block}"));
            let statements = policy["Statement"].as_array().into_iter().flatten();
            for statement in statements {
                let actions = actions(statement);
                if actions.contains(&"sts:AssumeRole") {
                    // Sessions of EKS Pod Identity have transitive tags.
                    assert!(actions.contains(&"sts:TagSession"), "{path}: {block}");
                    count += 1;
                }
            }
        }
    }

    // The policy of the controller, and the trust policy of a role.
    assert_eq!(count, 2);
}
