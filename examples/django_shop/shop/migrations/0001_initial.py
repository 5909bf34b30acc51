from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True
    dependencies = [("relaybox", "0001_tables")]  # noqa: RUF012 - the form that makemigrations writes
    operations = [  # noqa: RUF012
        migrations.CreateModel(
            "Order",
            [
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("item", models.CharField(max_length=100)),
                ("confirmed", models.BooleanField(default=False)),
                ("paid", models.BooleanField(default=False)),
                ("parcels", models.IntegerField(default=0)),
            ],
        )
    ]
