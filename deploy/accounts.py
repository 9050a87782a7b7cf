"""Makes the bucket of the storage and the pipelines' user of MLflow, unless they exist; compose.yaml runs it at each start."""

import os

import boto3
from mlflow.exceptions import RestException
from mlflow.server import get_app_client

BUCKET = "gausscse"
USER = "gausscse"
S3 = "http://s3.gausscse.internal:7070"
MLFLOW = "http://mlflow.gausscse.internal:5000"

s3 = boto3.client("s3", endpoint_url=S3, region_name="us-east-1")
if BUCKET not in {bucket["Name"] for bucket in s3.list_buckets()["Buckets"]}:
    s3.create_bucket(Bucket=BUCKET)
mlflow = get_app_client("basic-auth", MLFLOW)
try:
    # Also after a change of the password in deploy/.env.
    mlflow.update_user_password(USER, os.environ["PIPELINE_PASSWORD"])
except RestException as error:
    if error.error_code != "RESOURCE_DOES_NOT_EXIST":
        raise
    mlflow.create_user(USER, os.environ["PIPELINE_PASSWORD"])
