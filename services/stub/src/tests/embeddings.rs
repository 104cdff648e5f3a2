//! OpenAI's embeddings.

use serde_json::{Value, json};

use super::{Client, ended, stub};
use crate::Stub;
use crate::journal::Billed;

async fn ask(stub: &Stub, body: Value) -> super::client::Answer {
    Client::connect(stub).await.call("POST", "/v1/embeddings", "", &body.to_string()).await
}

#[tokio::test]
async fn one_vector_an_input_in_both_encodings_and_only_the_prompt_is_billed() {
    let stub = stub("usage = { prompt = 12, completion = 99 }");
    let body = ask(&stub, json!({"model": "e", "input": ["a", "b"], "dimensions": 4})).await.json();
    assert_eq!(body["data"][1], json!({"object": "embedding", "index": 1, "embedding": [0.0, 1.0, 0.0, 0.0]}));
    assert_eq!((&body["model"], &body["usage"]), (&json!("e"), &json!({"prompt_tokens": 12, "total_tokens": 12})));
    assert_eq!(ended(&stub).await.billed, Some(Billed { prompt: 12, ..Billed::default() }));
    let base64 = ask(&stub, json!({"model": "e", "input": "a", "dimensions": 2, "encoding_format": "base64"})).await;
    assert_eq!(base64.json()["data"][0]["embedding"], json!("AACAPwAAAAA="));
}

#[tokio::test]
async fn what_the_real_one_refuses() {
    let stub = stub("");
    let refused = [json!({"model": "e"}), json!({"model": "e", "input": ""}), json!({"model": "e", "input": []})];
    for body in refused {
        let answer = ask(&stub, body.clone()).await;
        assert_eq!((answer.status, &answer.json()["error"]["param"]), (400, &json!("input")), "{body}");
    }
    let tokens = [(json!([1, 2, 3]), 1), (json!([[1, 2], [3]]), 2), (json!("[[stub {\"usage\":{\"prompt\":5}}]]"), 1)];
    for (input, vectors) in tokens {
        let body = ask(&stub, json!({"model": "e", "input": input})).await.json();
        assert_eq!(body["data"].as_array().unwrap().len(), vectors);
    }
    assert_eq!(stub.journal().last().unwrap().billed.unwrap().prompt, 5);
}
