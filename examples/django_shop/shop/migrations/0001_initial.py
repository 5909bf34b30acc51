from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True
    operations = [  # noqa: RUF012 - the form that makemigrations writes
        migrations.CreateModel(
            "Order",
            [
                ("id", models.BigAutoField(primary_key=True)),
                ("item", models.CharField(max_length=100)),
                ("confirmed", models.BooleanField(default=False)),
            ],
        )
    ]
