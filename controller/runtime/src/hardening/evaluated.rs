//! Admission policies, evaluated as CEL.

use std::collections::HashMap;

use cel::{Context, Program};
use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicy;
use serde_json::Value;

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

/// Returns the messages of the validations that reject a write. `given` contains the objects that expressions can use,
/// such as `request` and `object`. All match conditions must be true.
pub(super) fn refused(policy: ValidatingAdmissionPolicy, given: &Value) -> Vec<String> {
    let spec = policy.spec.unwrap();
    let evaluate = |expression: &str, variables: &HashMap<String, cel::Value>| {
        let program =
            Program::compile(expression).unwrap_or_else(|error| panic!("{expression}: {error}"));
        let mut context = Context::default();
        for (name, value) in given.as_object().unwrap() {
            context.add_variable_from_value(name.as_str(), to_cel(value));
        }
        context.add_variable_from_value("variables", variables.clone());
        let value = program.execute(&context);
        value.unwrap_or_else(|error| panic!("{expression}: {error}"))
    };
    let mut variables = HashMap::new();
    for variable in spec.variables.into_iter().flatten() {
        let value = evaluate(&variable.expression, &variables);
        variables.insert(variable.name, value);
    }
    for condition in spec.match_conditions.into_iter().flatten() {
        let matches = evaluate(&condition.expression, &variables);
        assert_eq!(matches, true.into(), "{}", condition.name);
    }
    let validations = spec.validations.unwrap().into_iter();
    let broken = validations.filter(|one| evaluate(&one.expression, &variables) != true.into());
    broken.map(|one| one.message.unwrap()).collect()
}
