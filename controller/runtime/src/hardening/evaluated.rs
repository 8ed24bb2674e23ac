//! Evaluates admission policies as CEL.

use std::collections::HashMap;
use std::sync::Arc;

use cel::extractors::This;
use cel::{Context, Program};
use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicy;
use regex_lite::Regex;
use serde_json::Value;

#[expect(
    clippy::needless_pass_by_value,
    reason = "the interpreter gives functions their arguments by value"
)]
fn matches(This(text): This<Arc<String>>, pattern: Arc<String>) -> bool {
    Regex::new(&pattern).unwrap().is_match(&text)
}

/// Converts a JSON value to a CEL value. All numbers are integers.
fn to_cel(value: &Value) -> cel::Value {
    match value {
        Value::Null => cel::Value::Null,
        Value::Bool(value) => (*value).into(),
        Value::Number(number) => number.as_i64().unwrap().into(),
        Value::String(text) => text.as_str().into(),
        Value::Array(list) => list.iter().map(to_cel).collect::<Vec<_>>().into(),
        Value::Object(fields) => {
            let fields = fields.iter();
            let fields: HashMap<_, _> = fields
                .map(|(name, value)| (name.clone(), to_cel(value)))
                .collect();
            fields.into()
        }
    }
}

/// Evaluates an expression of a policy with these variables.
fn evaluate(
    expression: &str,
    given: &Value,
    variables: &HashMap<String, cel::Value>,
) -> cel::Value {
    let program =
        Program::compile(expression).unwrap_or_else(|error| panic!("{expression}: {error}"));
    let mut context = Context::default();
    context.add_function("matches", matches).unwrap();
    for (name, value) in given.as_object().unwrap() {
        context.add_variable_from_value(name.as_str(), to_cel(value));
    }
    context.add_variable_from_value("variables", variables.clone());
    let value = program.execute(&context);
    value.unwrap_or_else(|error| panic!("{expression}: {error}"))
}

/// Returns the messages of the validations that reject a write. `given` contains the objects that expressions can use,
/// such as `request` and `object`. All match conditions must be true.
pub(super) fn refused(policy: ValidatingAdmissionPolicy, given: &Value) -> Vec<String> {
    let spec = policy.spec.unwrap();
    let mut variables = HashMap::new();
    for variable in spec.variables.into_iter().flatten() {
        let value = evaluate(&variable.expression, given, &variables);
        variables.insert(variable.name, value);
    }
    for condition in spec.match_conditions.into_iter().flatten() {
        let matches = evaluate(&condition.expression, given, &variables);
        assert_eq!(matches, true.into(), "{}", condition.name);
    }
    let validations = spec.validations.unwrap().into_iter();
    let is_broken = |expression: &str| evaluate(expression, given, &variables) != true.into();
    let broken = validations.filter(|one| is_broken(&one.expression));
    broken.map(|one| one.message.unwrap()).collect()
}

/// Returns the text of the policy's only audit annotation about a write. The expression uses no variables.
pub(super) fn audited(policy: ValidatingAdmissionPolicy, given: &Value) -> cel::Value {
    let annotations = policy.spec.unwrap().audit_annotations.unwrap();
    let [annotation] = annotations.try_into().unwrap();
    evaluate(&annotation.value_expression, given, &HashMap::new())
}
